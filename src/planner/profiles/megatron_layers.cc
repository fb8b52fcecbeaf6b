// What a layer keeps for its backward pass in Megatron-Core, tensor by tensor. Derivations: docs/profiles/megatron.md.
#include <algorithm>
#include <span>
#include <string_view>

#include "base/integer.h"
#include "planner/profiles/megatron_parts.h"

namespace fivefold {
namespace {

// Rows of the fullest rank of an expert group over the mean, under a balancing loss, until somebody says better.
constexpr double kUneven = 1.1;

double number(int64_t value) { return static_cast<double>(value); }

bool names(const std::vector<std::string>& list, std::string_view module) {
  return std::ranges::find(list, module) != list.end();
}

// Modules of a linear by the last parts of their Hub names; none: no adapter is made for it here.
using Modules = std::span<const std::string_view>;
constexpr std::string_view kQkv[] = {"q_proj", "k_proj", "v_proj", "qkv_proj"}, kOutput[] = {"o_proj"},
                           kMlpIn[] = {"gate_proj", "up_proj"}, kMlpOut[] = {"down_proj"};
constexpr Modules kNone;

// A sum of tensors, in bytes a token. `recomputed` and `offloaded` are the modules that make the tensor again, or move
// it to the host; "" for none.
class KeptTensors {
 public:
  explicit KeptTensors(const FrameworkRun& run) : run_(run), scale_(run.compute == DType::kFloat32 ? 2 : 1) {}
  void add(double bytes, std::string_view recomputed = {}, std::string_view offloaded = {}) {
    const MegatronSwitches& megatron = run_.megatron;
    if (names(megatron.recomputed_modules, recomputed) || names(megatron.offloaded_modules, offloaded)) return;
    if (recomputed == "core_attn" && run_.checkpointing == Checkpointing::kCoreAttention) return;
    bytes_ += bytes * scale_;
  }
  // The input of a linear: kept as its products read it, of a frozen one for its adapter alone.
  void add_input(double elements, Modules modules, std::string_view recomputed = {}, std::string_view offloaded = {}) {
    const auto adapted = [&](std::string_view module) { return names(run_.targets, module); };
    if (run_.trains_adapter && std::ranges::none_of(modules, adapted)) return;
    add(megatron_input_bytes(run_) / (run_.fp8 ? scale_ : 1) * elements, recomputed, offloaded);
  }
  double bytes() const { return bytes_; }

 private:
  const FrameworkRun& run_;
  double scale_;  // the formulas are of tensors in two bytes
  double bytes_ = 0;
};

// cuDNN's kernels are taken on Hopper and, unless they must be deterministic, on Blackwell.
bool uses_flash_library(const FrameworkRun& run) {
  if (!run.megatron.flash_library.assumed) return run.megatron.flash_library;
  return run.gpu.starts_with("a") || (run.megatron.deterministic && !run.gpu.starts_with("h"));
}

double scores_bytes(const FrameworkRun& run, double heads) {
  if (run.attention != AttentionKernel::kUnfused) return 0;
  return (run.dropout ? 5 : 2) * heads * number(div_exact(run.sequence, run.cp)) / number(run.tp);
}

// Scores or their statistics, and the output as the kernel lays it out and as the projection reads it.
void add_scores(const FrameworkRun& run, double heads, double value_dim, KeptTensors& kept) {
  const double t = number(run.tp);
  if (run.attention == AttentionKernel::kUnfused)
    kept.add(scores_bytes(run, heads), "core_attn");
  else
    kept.add(4 * heads / t, "core_attn");
  // flash-attn's output is [b, s, a, d]; one sequence is the same bytes as the [s, b, a d] that the projection keeps.
  if (run.attention != AttentionKernel::kUnfused && uses_flash_library(run) && run.micro > 1)
    kept.add(2 * heads * value_dim / t, "core_attn");
  kept.add_input(heads * value_dim / t, kOutput, {}, "attn_proj");
}

void add_attention(const FrameworkRun& run, const MixerSpec& m, KeptTensors& kept) {
  const double t = number(run.tp), a = number(m.num_heads), k = number(m.num_kv_heads), d = number(m.head_dim);
  kept.add(2 * (a + 2 * k) * d / t, {}, "core_attn");
  if (m.output_gate) kept.add(4 * a * d / t);  // the gate, and the output before it
  // Norms of q and k read a copy that is contiguous and write another; v holds on to the packed projection.
  if (m.qk_norm) kept.add((4 * (a + k) * d + 8 * (a + k)) / t);
  add_scores(run, a, d, kept);
}

// Query and key in full width and value; latents before and after their norms.
void add_latent_attention(const FrameworkRun& run, const MixerSpec& m, KeptTensors& kept) {
  const double a = number(m.num_heads), qk = number(m.qk_nope_head_dim + m.qk_rope_head_dim);
  const double latents = number(m.q_lora_rank) + number(m.kv_lora_rank);
  kept.add(a * (4 * qk + 2 * number(m.v_head_dim)) / number(run.tp), "mla_up_proj", "core_attn");
  kept.add(2 * latents + 2 * number(m.qk_rope_head_dim));
  kept.add_input(latents, kNone, "mla_up_proj");
  add_scores(run, a, number(m.v_head_dim), kept);
}

// The fused convolution and scan make all but their input and output again; a gated norm, the input of the projection.
void add_mamba(const FrameworkRun& run, const MixerSpec& m, KeptTensors& kept) {
  const double t = number(run.tp), inner = number(m.ssm_heads * m.ssm_head_dim),
               states = number(m.ssm_groups * m.ssm_state);
  kept.add(2 * (2 * inner + 2 * states + number(m.ssm_heads)) / t);
  kept.add(2 * inner / t);
  kept.add_input(inner / t, kNone);
}

// Projections, q k v after the convolution, keys for each value head, decay and step, chunks of 64 tokens' products;
// the output before and after its gated norm.
void add_linear_attention(const FrameworkRun& run, const MixerSpec& m, KeptTensors& kept) {
  const double t = number(run.tp), heads = number(m.linear_value_heads);
  const double key = number(m.linear_key_heads * m.linear_key_dim), value = heads * number(m.linear_value_dim);
  kept.add((2 * (2 * key + 2 * value + 2 * heads) + 2 * (2 * key + value)) / t);
  if (m.linear_value_heads > m.linear_key_heads) kept.add(4 * heads * number(m.linear_key_dim) / t);
  kept.add((8 * heads + 2 * 64 * heads + 2 * value) / t);
  kept.add_input(value / t, kNone, "gdn_norm_out");
}

void add_mixer(const FrameworkRun& run, const MixerSpec& m, KeptTensors& kept) {
  switch (m.kind) {
    case MixerKind::kNone:
      return;
    case MixerKind::kAttention:
      return add_attention(run, m, kept);
    case MixerKind::kLatentAttention:
      return add_latent_attention(run, m, kept);
    case MixerKind::kLinearAttention:
      return add_linear_attention(run, m, kept);
    case MixerKind::kMamba2:
      return add_mamba(run, m, kept);
  }
}

// What the activation reads and what the down projection reads.
void add_inner(bool gated, double width, std::string_view recomputed, KeptTensors& kept) {
  kept.add((gated ? 4 : 2) * width, recomputed);
  kept.add_input(width, kMlpOut, recomputed);
}

void add_experts(const FrameworkRun& run, const MlpSpec& m, KeptTensors& kept) {
  const double h = number(run.model.hidden), parts = number(sequence_parts(run)), t = number(run.tp);
  const bool whole = names(run.megatron.recomputed_modules, "moe");
  if (!whole) {
    const double uneven = run.ep == 1 ? 1.0 : run.expert_imbalance.assumed ? kUneven : run.expert_imbalance.value;
    const double rows = number(m.experts_per_token * run.expert_tp) / parts * uneven;
    const double width = rows * number(m.expert_ffn) / number(run.expert_tp);
    const bool inside = run.megatron.weighs_inside_experts;
    kept.add_input(rows * h, kNone, {}, "expert_fc1");
    kept.add((m.expert_gated ? 4 : 2) * width, {}, "moe_act");
    // The fused product of gate, up and probability keeps these alone; a plain activation also its own output.
    if (inside && !m.expert_gated) kept.add(2 * width, "moe_act");
    kept.add_input(width, kNone, "moe_act");
    if (!inside) kept.add(2 * h * number(m.experts_per_token * run.expert_tp) / parts);
    kept.add(8 * number(m.num_experts) / parts);
  }
  if (!whole) add_inner(m.expert_gated, number(m.shared_ffn) / t, "shared_experts", kept);
}

}  // namespace

double megatron_input_bytes(const FrameworkRun& run) {
  if (!run.fp8) return 2;
  switch (run.megatron.recipe) {
    case ScalingRecipe::kTensorwise:
      return 1;
    case ScalingRecipe::kBlockwise:
      return 1 + 4.0 / 128;
    case ScalingRecipe::kMxfp8:
      return 1 + 1.0 / 32;
    case ScalingRecipe::kNvfp4:
      return 0.5 + 1.0 / 16;
  }
  return 2;
}

double megatron_scores_bytes(const FrameworkRun& run, const MixerSpec& mixer) {
  return scores_bytes(run, number(mixer.num_heads));
}

double megatron_layer_bytes(const FrameworkRun& run, const LayerSpec& layer) {
  const double h = number(run.model.hidden), parts = number(sequence_parts(run));
  const MlpSpec& mlp = layer.mlp;
  const bool experts = mlp.kind == MlpKind::kMoe, latent = layer.mixer.kind == MixerKind::kLatentAttention;
  const double mask = run.dropout ? h / parts : 0;
  KeptTensors kept(run);
  // Norms before attention and before a dense MLP are fused with the linear that follows: nothing makes them again.
  if (layer.mixer.kind != MixerKind::kNone) {
    kept.add(2 * h / parts, {}, "attn_norm");
    kept.add_input(h / parts, kQkv, latent ? "layernorm" : "", "qkv_linear");
    add_mixer(run, layer.mixer, kept);
    kept.add(mask);
  }
  if (mlp.kind == MlpKind::kNone) return kept.bytes();
  kept.add(2 * h / parts, {}, "mlp_norm");
  if (experts) {
    kept.add(2 * h / parts, "layernorm");  // the router reads it too
    add_experts(run, mlp, kept);
  } else {
    kept.add_input(h / parts, kMlpIn);
    add_inner(mlp.kind == MlpKind::kGated, number(mlp.ffn) / number(run.tp), "mlp", kept);
  }
  kept.add(mask);
  return kept.bytes();
}

// Gradients of the layer's output and of the product inside its MLP.
double megatron_gradient_bytes(const FrameworkRun& run, const LayerSpec& layer) {
  const MlpSpec& m = layer.mlp;
  const double parts = number(sequence_parts(run)), t = number(run.tp);
  const double inner = m.kind == MlpKind::kMoe
                           ? number(m.experts_per_token * m.expert_ffn) / parts + number(m.shared_ffn) / t
                           : number(m.ffn) / t;
  return 2 * number(run.model.hidden) / parts + 2 * inner;
}

// Norms of the hidden states and of the next token's embedding, both side by side, the norm behind the layer.
double megatron_prediction_bytes(const FrameworkRun& run) {
  return (4 + 4 + 4 + 4) * number(run.model.hidden) / number(sequence_parts(run));
}

}  // namespace fivefold
