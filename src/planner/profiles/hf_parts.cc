// What transformers' model holds: parameters, adapters, and what a layer's operations keep for the backward pass.
#include "planner/profiles/hf_parts.h"

#include <algorithm>

#include "spec/inventory.h"

namespace fivefold {
namespace {

// Sums `layer` into the counts, and keeps the largest layer.
void count_layer(const Unit& unit, HfParameters& n) {
  int64_t linear = 0, vectors = 0;
  for (const ParameterEntry& entry : unit.parameters)
    (entry.whole_shape.size() > 1 ? linear : vectors) += entry.whole_numel();
  n.linear += linear, n.vectors += vectors;
  n.layer_linear = std::max(n.layer_linear, linear);
  n.layer_vectors = std::max(n.layer_vectors, vectors);
}

// What adapters keep beside the frozen layer.
double adapter_bytes(const FrameworkRun& run, const LayerSpec& layer, double& whole) {
  const HfSwitches& hf = run.hf;
  const auto width = static_cast<double>(hf.autocast ? 2 : dtype_bytes(hf.adapter_dtype));
  const auto h = static_cast<double>(run.model.hidden);
  double bytes = 0;
  bool mixer_input = false, mlp_input = false;
  for (const std::string& target : run.targets) {
    const auto [in_width, out_width] = target_widths(run.model, layer, target);
    const auto in = static_cast<double>(in_width), out = static_cast<double>(out_width);
    const bool mlp = target == "gate_proj" || target == "up_proj" || target == "down_proj";
    switch (hf.adapter) {
      case AdapterKind::kLora:
        if (hf.fused_adapters) {
          // The undropped input of q, k and v is shared, as that of gate and up; that of o is the attention's output,
          // that of down the product, which fused kernels form anew.
          bytes += hf.adapter_dropout ? 2 * in : 0;
          mixer_input |= !mlp && target != "o_proj" && in > 0;
          mlp_input |= mlp && in > 0;
        } else if (in > 0) {
          // A mask of one byte, the input in the type of the adapter's product, and the narrow product.
          bytes += (hf.adapter_dropout ? 1 : 0) * in + width * in + width * static_cast<double>(run.rank);
        }
        break;
      case AdapterKind::kScale:
        bytes += mlp ? 4 * in : 2 * out;
        break;
      case AdapterKind::kWeightUpdate:
        whole += 10 * in * out;  // two fp32 factors, their product, and the sum in bf16
        break;
      case AdapterKind::kTransform:
        whole += 14 * in * out;
        break;
      case AdapterKind::kOutput:
      case AdapterKind::kPrompt:
      case AdapterKind::kFullScale:
        break;
    }
    if (hf.dora) bytes += 6 * out;  // the base layer's output, and the adapter's in fp32
  }
  return bytes + (mixer_input ? 2 * h : 0) + (mlp_input ? 2 * h : 0);
}

double attention_bytes(const FrameworkRun& run, const MixerSpec& m) {
  const auto a = static_cast<double>(m.num_heads), k = static_cast<double>(m.num_kv_heads),
             d = static_cast<double>(m.head_dim);
  double bytes = 2 * (a + 2 * k) * d + 2 * a * d + 4 * a;
  if (run.hf.repeats_kv) bytes += 4 * (a - k) * d;
  // Scores in fp32 and a mask or probabilities: measured, 5 B (ms-swift 0083 and 0085).
  if (run.attention == AttentionKernel::kUnfused) bytes += 5 * a * static_cast<double>(run.sequence);
  return bytes;
}

// LitGPT: q, k and v are views of one buffer, which lives beside q and k after their rotation.
double litgpt_bytes(const FrameworkRun& run, const LayerSpec& layer) {
  const auto h = static_cast<double>(run.model.hidden), f = static_cast<double>(layer.mlp.ffn),
             a = static_cast<double>(layer.mixer.num_heads * layer.mixer.head_dim),
             k = static_cast<double>(layer.mixer.num_kv_heads * layer.mixer.head_dim);
  const bool gated = layer.mlp.kind == MlpKind::kGated;
  const double norm = layer.norm.kind == NormKind::kRms ? 4 * h : 2 * h;
  double bytes = 2 * norm + 2 * (a + 2 * k) + 2 * (a + k) + 2 * a + (gated ? 6 : 2) * f;
  if (run.trains_adapter && run.hf.adapter == AdapterKind::kLora)
    // Dropped input and its mask; then the updates of q and v, and their sum filled up with zeros.
    bytes += 3 * h + 2 * (a + 2 * k);
  if (run.hf.adapter == AdapterKind::kFullScale)
    bytes += 2 * norm + 2 * (a + 2 * k) + 2 * h + (gated ? 4 : 2) * f + 2 * h;
  if (run.hf.frozen_keeps_inputs) bytes += 2 * h + 2 * a + 2 * h + 2 * f;
  return bytes;
}

// An MLP, or experts by the rows of a token.
struct Mlp {
  explicit Mlp(const MlpSpec& spec)
      : moe(spec.kind == MlpKind::kMoe),
        gated(moe ? spec.expert_gated : spec.kind == MlpKind::kGated),
        rows(moe ? static_cast<double>(spec.experts_per_token) : 1),
        f(static_cast<double>(moe ? spec.expert_ffn : spec.ffn)) {}
  bool moe, gated;
  double rows, f;
};

void add_transformers_bytes(const FrameworkRun& run, const LayerSpec& layer, HfLayerBytes& bytes) {
  const auto h = static_cast<double>(run.model.hidden);
  const Mlp mlp(layer.mlp);
  const bool full = !run.trains_adapter, wide = trains_in_fp32(run), keeps_inputs = full || run.hf.frozen_keeps_inputs;
  // RMSNorm in operations keeps an fp32 copy of its input, and what a trained weight multiplies. Other norms and fused
  // ones keep their input: before the mixer that is the layer's, which a checkpoint has already, as an fp32 residual.
  const bool operations = !run.hf.fused_norms && layer.norm.kind == NormKind::kRms;
  const double input = wide || operations ? 4 * h : 2 * h, scaled = operations && full ? (wide ? 4 : 2) * h : 0;
  const bool has_input = run.checkpointing == Checkpointing::kFull && (wide || !operations);
  bytes.kept = 2 * (input + scaled + 4) - (has_input ? input : 0) + attention_bytes(run, layer.mixer);
  if (keeps_inputs) bytes.kept += 2 * h + 2 * h * mlp.rows;
  if (wide) bytes.kept += 2 * 2 * h + 2 * h * mlp.rows;  // q, k, v, gate and up each cast theirs
  bytes.kept += (mlp.gated ? 6 : 2) * mlp.f * mlp.rows;
  bytes.freed = keeps_inputs ? 2 * mlp.f * mlp.rows : 0;
  bytes.kept += bytes.freed;
  // Experts' outputs, which the routing weights multiply; the router's scores, and which token goes where.
  if (mlp.moe)
    bytes.kept += 2 * h * mlp.rows + 8 * static_cast<double>(layer.mlp.num_experts * (1 + layer.mlp.experts_per_token));
  if (!full) bytes.kept += adapter_bytes(run, layer, bytes.whole);
}

}  // namespace

HfParameters hf_parameters(const FrameworkRun& run) {
  ModelSpec model = run.model;
  model.adapter.reset();
  const Inventory inventory = build_inventory(model);
  HfParameters n;
  n.head = model.vocab * model.hidden;
  n.embeddings = (model.tied_embeddings ? 1 : 2) * n.head;
  for (const Unit& unit : inventory.units)
    if (unit.kind == UnitKind::kLayer) count_layer(unit, n);
  n.vectors += model.hidden;
  if (!run.trains_adapter) return n;
  n.adapter = run.hf.trained;
  if (n.adapter == 0)
    for (const LayerSpec& layer : model.layers)
      for (const std::string& target : run.targets) {
        const Widths w = target_widths(model, layer, target);
        if (w.in > 0) n.adapter += run.rank * (w.in + w.out);
      }
  return n;
}

FrozenBytes frozen_bytes(const FrameworkRun& run) {
  switch (run.frozen) {
    case FrozenWeights::kNf4:
      return {.cut = 0.5, .whole = 4.0 / 64};
    case FrozenWeights::kNf4Double:
      return {.cut = 0.5, .whole = 1.0 / 64 + 4.0 / (64 * 256)};
    case FrozenWeights::kInt4:  // GPTQ, groups of 128: codes and zero points; fp16 scales, and the group of each input
      return {.cut = 0.5 + 0.5 / 128, .whole = 2.0 / 128 + 0.0009};
    case FrozenWeights::kInt8:
      return {.cut = 1.0 + 1.0 / 128, .whole = 2.0 / 128 + 0.0009};
    case FrozenWeights::kNone:
    case FrozenWeights::kBf16:
      break;
  }
  return {.cut = static_cast<double>(dtype_bytes(run.compute)), .whole = 0};
}

bool trains_in_fp32(const FrameworkRun& run) {
  const bool sharded = run.zero >= 3 && run.dp > 1;
  return !run.trains_adapter && run.hf.autocast && run.weight_dtype == DType::kFloat32 && !sharded && !run.hf.deepspeed;
}

int64_t hf_shards(const FrameworkRun& run) { return run.shard_size > 0 ? run.shard_size : run.dp; }

Widths target_widths(const ModelSpec& model, const LayerSpec& layer, const std::string& target) {
  const int64_t h = model.hidden, q = layer.mixer.num_heads * layer.mixer.head_dim,
                kv = layer.mixer.num_kv_heads * layer.mixer.head_dim, f = layer.mlp.ffn;
  const bool has_mlp = layer.mlp.kind == MlpKind::kGated || layer.mlp.kind == MlpKind::kPlain;
  if (target == "q_proj") return {h, q};
  if (target == "k_proj" || target == "v_proj") return {h, kv};
  if (target == "qkv_proj") return {h, q + 2 * kv};
  if (target == "o_proj") return {q, h};
  if (target == "up_proj" && has_mlp) return {h, f};
  if (target == "gate_proj" && layer.mlp.kind == MlpKind::kGated) return {h, f};
  if (target == "down_proj" && has_mlp) return {f, h};
  return {};
}

HfLayerBytes hf_layer_bytes(const FrameworkRun& run, const LayerSpec& layer) {
  HfLayerBytes bytes;
  if (run.hf.code == LayerCode::kLitGpt)
    bytes.kept = litgpt_bytes(run, layer);
  else
    add_transformers_bytes(run, layer, bytes);
  // Gradients of the product, of the activation's output and of its other factor, one expert at a time; the gradient of
  // the layer's output.
  const auto h = static_cast<double>(run.model.hidden);
  const Mlp mlp(layer.mlp);
  const double share = mlp.moe ? mlp.rows / static_cast<double>(layer.mlp.num_experts) * run.expert_imbalance : 1;
  bytes.gradients = (mlp.gated ? 6 : 4) * mlp.f * share + (trains_in_fp32(run) ? 4 : 2) * h;
  // Experts add into a gradient of the tokens, and take theirs from one of the sum.
  if (mlp.moe) bytes.gradients += 4 * h + 4 * h * share;
  return bytes;
}

double hf_loss_bytes(const FrameworkRun& run) {
  const auto h = static_cast<double>(run.model.hidden), v = static_cast<double>(run.model.vocab);
  const double norm = (run.hf.fused_norms ? 4 * h : 6 * h) + (trains_in_fp32(run) ? 4 * h : 0);
  switch (run.cross_entropy) {
    case CrossEntropyKernel::kInPlace:
      return norm + 8 * v;
    case CrossEntropyKernel::kInPlaceUpcast:
    case CrossEntropyKernel::kEagerHalf:  // logits, their shifted copy, log-probabilities, two gradients
      return norm + 10 * v;
    case CrossEntropyKernel::kChunked:
      return norm + 2 * h;
    default:  // logits in bf16 and fp32, log-probabilities, two gradients
      return norm + (run.hf.code == LayerCode::kLitGpt ? 6 : 14) * v;
  }
}

}  // namespace fivefold
