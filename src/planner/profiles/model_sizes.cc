#include "planner/profiles/model_sizes.h"

#include <numeric>

#include "base/integer.h"
#include "planner/profiles/inventory_memo.h"

namespace fivefold {
namespace {

int64_t numel(const Unit& unit, const FrameworkRun& run) {
  int64_t sum = 0;
  for (const ParameterEntry& entry : unit.parameters) {
    const int64_t parts = entry.expert ? run.ep * run.expert_tp : entry.split == Split::kReplicated ? 1 : run.tp;
    sum += div_ceil(entry.numel(), parts);
  }
  return sum;
}

}  // namespace

int64_t ModelSizes::total() const { return std::accumulate(layers.begin(), layers.end(), table + head + norm); }

ModelSizes model_sizes(const FrameworkRun& run) {
  const std::shared_ptr<const Inventory> known = remembered_inventory(run.model);
  const Inventory& inventory = *known;
  ModelSizes sizes;
  sizes.table = numel(inventory.units.front(), run);
  for (int unit = 1; unit < inventory.head(); ++unit)
    sizes.layers.push_back(numel(inventory.units[static_cast<size_t>(unit)], run));
  const int64_t last = numel(inventory.units.back(), run);
  sizes.head = run.model.tied_embeddings ? 0 : div_ceil(run.model.vocab * run.model.hidden, run.tp);
  sizes.norm = last - sizes.head;
  return sizes;
}

namespace {

void add_attention(const MixerSpec& m, LayerWidths& widths) {
  widths.heads = static_cast<double>(m.num_heads);
  widths.query = widths.output = static_cast<double>(m.num_heads * m.head_dim);
  widths.key_value = static_cast<double>(2 * m.num_kv_heads * m.head_dim);
  if (m.kind != MixerKind::kLatentAttention) return;
  const int64_t wide = m.qk_nope_head_dim + m.qk_rope_head_dim;
  widths.query = static_cast<double>(m.num_heads * wide);
  widths.key_value = static_cast<double>(m.num_heads * (wide + m.v_head_dim));
  widths.output = static_cast<double>(m.num_heads * m.v_head_dim);
  widths.latent = static_cast<double>(2 * (m.q_lora_rank + m.kv_lora_rank) + m.qk_rope_head_dim);
}

void add_recurrent(const MixerSpec& m, LayerWidths& widths) {
  if (m.kind == MixerKind::kMamba2) {
    const int64_t inner = m.ssm_heads * m.ssm_head_dim;
    widths.key_value = static_cast<double>(2 * inner + 2 * m.ssm_groups * m.ssm_state + m.ssm_heads);
    widths.output = widths.state = static_cast<double>(inner);
    return;
  }
  const int64_t heads = m.linear_value_heads, key = m.linear_key_heads * m.linear_key_dim,
                value = heads * m.linear_value_dim;
  // Keys for each value head, decay and step, products of chunks of 64 tokens.
  const int64_t repeated = heads > m.linear_key_heads ? 2 * heads * m.linear_key_dim : 0;
  widths.key_value = static_cast<double>(2 * key + 2 * value + 2 * heads + 2 * key + value);
  widths.output = static_cast<double>(value);
  widths.state = static_cast<double>(value + repeated + (4 + 64) * heads);
}

}  // namespace

LayerWidths layer_widths(const LayerSpec& layer) {
  const MixerSpec& mixer = layer.mixer;
  const MlpSpec& mlp = layer.mlp;
  LayerWidths widths;
  if (mixer.kind == MixerKind::kAttention || mixer.kind == MixerKind::kLatentAttention) add_attention(mixer, widths);
  if (mixer.kind == MixerKind::kMamba2 || mixer.kind == MixerKind::kLinearAttention) add_recurrent(mixer, widths);
  if (mlp.kind == MlpKind::kNone) return widths;
  const bool experts = mlp.kind == MlpKind::kMoe;
  widths.rows = experts ? static_cast<double>(mlp.experts_per_token) : 0;
  widths.inner = static_cast<double>(experts ? mlp.experts_per_token * mlp.expert_ffn + mlp.shared_ffn : mlp.ffn);
  widths.gated = experts ? mlp.expert_gated : mlp.kind == MlpKind::kGated;
  return widths;
}

int64_t rank_tokens(const FrameworkRun& run) { return run.micro * div_ceil(run.sequence, run.cp); }

void add_line(ProfilePhase& phase, const std::string& name, double bytes, const std::string& formula) {
  if (bytes > 0) phase.lines.push_back({name, static_cast<int64_t>(bytes), formula});
}

}  // namespace fivefold
