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

LayerWidths layer_widths(const LayerSpec& layer) {
  const MixerSpec& mixer = layer.mixer;
  const MlpSpec& mlp = layer.mlp;
  LayerWidths widths;
  widths.heads = static_cast<double>(mixer.num_heads);
  widths.query = static_cast<double>(mixer.num_heads * mixer.head_dim);
  widths.key_value = static_cast<double>(2 * mixer.num_kv_heads * mixer.head_dim);
  const bool experts = mlp.kind == MlpKind::kMoe;
  widths.inner = static_cast<double>(experts ? mlp.experts_per_token * mlp.expert_ffn + mlp.shared_ffn : mlp.ffn);
  widths.gated = experts ? mlp.expert_gated : mlp.kind == MlpKind::kGated;
  return widths;
}

int64_t rank_tokens(const FrameworkRun& run) { return run.micro * div_ceil(run.sequence, run.cp); }

void add_line(ProfilePhase& phase, const std::string& name, double bytes, const std::string& formula) {
  if (bytes > 0) phase.lines.push_back({name, static_cast<int64_t>(bytes), formula});
}

}  // namespace fivefold
