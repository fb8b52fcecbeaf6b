#include "planner/profiles/megatron_parts.h"

#include <algorithm>

#include "base/integer.h"

namespace fivefold {
namespace {

double number(int64_t value) { return static_cast<double>(value); }

double latent_bytes(const FrameworkRun& run, const MixerSpec& m) {
  const double nope = number(m.qk_nope_head_dim), rope = number(m.qk_rope_head_dim), v = number(m.v_head_dim);
  // Query and key in full width, value, output; latents before and after their norms.
  return number(m.num_heads) * (4 * (nope + rope) + 4 * v + 4) / number(run.tp) + 4 * number(m.q_lora_rank) +
         4 * number(m.kv_lora_rank) + 2 * rope;
}

double mixer_bytes(const FrameworkRun& run, const MixerSpec& m) {
  const double t = number(run.tp), a = number(m.num_heads), k = number(m.num_kv_heads), d = number(m.head_dim);
  const bool latent = m.kind == MixerKind::kLatentAttention;
  double bytes = latent ? latent_bytes(run, m) : (2 * (a + 2 * k) * d + 2 * a * d + 4 * a) / t;
  // Norms of q and k read a copy that is contiguous and write another; v holds on to the packed projection.
  if (m.qk_norm && !latent) bytes += (4 * (a + k) * d + 8 * (a + k)) / t;
  // Recompute of the attention keeps q, k, v and the output, which the projection reads.
  if (run.checkpointing == Checkpointing::kCoreAttention)
    bytes -= 4 * a / t;
  else if (run.attention == AttentionKernel::kUnfused)
    bytes += megatron_scores_bytes(run, m);
  // flash-attn's output is [b, s, a, d] and is kept; the projection after it keeps it as [s, b, a d]. One sequence is
  // the same bytes in both.
  else if (run.megatron.flash_library && run.micro > 1)
    bytes += 2 * a * (latent ? number(m.v_head_dim) : d) / t;
  return bytes;
}

double inner_factor(bool gated) { return gated ? 6.0 : 4.0; }

double mlp_bytes(const FrameworkRun& run, const MlpSpec& m) {
  const double h = number(run.model.hidden), t = number(run.tp), parts = number(sequence_parts(run));
  if (m.kind == MlpKind::kNone) return 0;
  if (m.kind != MlpKind::kMoe) return inner_factor(m.kind == MlpKind::kGated) * number(m.ffn) / t;
  const double rows = number(m.experts_per_token * run.expert_tp) / parts;
  const double expert = inner_factor(m.expert_gated) * number(m.expert_ffn) / number(run.expert_tp);
  // Rows as dispatched, inside the experts, and as they come out; the router's logits and probabilities.
  const double gathered = run.gathers_for_experts ? 2 * h * number(run.ep) : 0.0;
  return gathered + rows * run.expert_imbalance * (2 * h + expert) + rows * 2 * h + 8 * number(m.num_experts) / parts +
         inner_factor(m.expert_gated) * number(m.shared_ffn) / t;
}

// Layers of each of the p v virtual stages, in the order of the pipeline.
std::vector<int64_t> virtual_stages(const FrameworkRun& run) {
  const int64_t layers = static_cast<int64_t>(run.model.layers.size()), stages = run.pp * run.vpp;
  if (static_cast<int64_t>(run.stage_layers.size()) == stages) return run.stage_layers;
  if (!run.stage_layers.empty()) {  // of whole stages: each chunk has an equal part
    std::vector<int64_t> counts;
    for (int64_t chunk = 0; chunk < run.vpp; ++chunk)
      for (const int64_t count : run.stage_layers) counts.push_back(div_floor(count, run.vpp));
    return counts;
  }
  std::vector<int64_t> counts(static_cast<size_t>(stages), div_floor(layers, stages));
  for (int64_t i = 0; i < layers % stages; ++i) ++counts[static_cast<size_t>(i)];
  return counts;
}

// Of the chunks whose forward a stage has run, and not their backward, how many are of each chunk: it runs a group of
// microbatches through one chunk, then the same through the next.
std::vector<double> chunks_in_flight(const FrameworkRun& run, int64_t stage) {
  const int64_t p = run.pp, v = run.vpp, m = run.microbatches;
  const int64_t group = run.megatron.chunk_group > 0 ? int64_t{run.megatron.chunk_group} : p;
  const int64_t forwards = std::min(m * v, 2 * (p - stage - 1) + (v - 1) * group + 1);
  std::vector<double> flight(static_cast<size_t>(v));
  for (int64_t forward = 0; forward < forwards; ++forward) {
    // The last group may have fewer microbatches.
    const int64_t in_group = std::min(group, m - div_floor(forward, group * v) * group);
    flight[static_cast<size_t>(div_floor(forward % (group * v), in_group))] += 1;
  }
  return flight;
}

double microbatches_in_flight(const FrameworkRun& run, int64_t stage) {
  const double flight = number(std::min(run.microbatches, run.pp - stage));
  switch (run.vocabulary_stages) {
    case VocabularyStages::kLast:
      return flight;
    case VocabularyStages::kOneMore:
      return flight + 1;
    case VocabularyStages::kTwoMore:
      return flight + 2;
    case VocabularyStages::kInterlaced:
      return flight * 1.5;
  }
  return flight;
}

}  // namespace

int64_t sequence_parts(const FrameworkRun& run) { return run.sp ? run.tp : 1; }

std::vector<MegatronChunk> megatron_chunks(const FrameworkRun& run, int64_t stage) {
  const std::vector<int64_t> counts = virtual_stages(run);
  std::vector<double> flight(1, 1.0);
  if (run.pp > 1 && run.vpp > 1)
    flight = chunks_in_flight(run, stage);
  else if (run.pp > 1)
    flight[0] = microbatches_in_flight(run, stage);
  std::vector<MegatronChunk> chunks;
  for (int64_t at = 0, first = 0; at < static_cast<int64_t>(counts.size()); ++at) {
    const int64_t count = counts[static_cast<size_t>(at)];
    if (at % run.pp == stage) chunks.push_back({first, count, flight[static_cast<size_t>(div_floor(at, run.pp))]});
    first += count;
  }
  return chunks;
}

double megatron_layer_bytes(const FrameworkRun& run, const LayerSpec& layer) {
  return (8 + (run.dropout ? 2 : 0)) * number(run.model.hidden) / number(sequence_parts(run)) +
         mixer_bytes(run, layer.mixer) + mlp_bytes(run, layer.mlp);
}

double megatron_scores_bytes(const FrameworkRun& run, const MixerSpec& mixer) {
  if (run.attention != AttentionKernel::kUnfused) return 0;
  return (run.dropout ? 5 : 4) * number(mixer.num_heads * div_exact(run.sequence, run.cp)) / number(run.tp);
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

}  // namespace fivefold
