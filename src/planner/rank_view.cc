#include "planner/rank_view.h"

#include <algorithm>

#include "spec/rank_grid.h"

namespace fivefold {

GroupKind group_of(PartialOver over) {
  switch (over) {
    case PartialOver::kTensorGroup:
      return GroupKind::kTp;
    case PartialOver::kKvHolders:
      return GroupKind::kKvHead;
    case PartialOver::kTiedEnds:
      return GroupKind::kEmbedding;
  }
  FIVEFOLD_CHECK(false);
}

RankView::RankView(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config, int rank)
    : RankView(model, inventory, config, rank, nullptr) {
  if (split_.size == 1) return;
  owned_ = std::make_shared<const RankPart>(rank_part(model, config, rank));
  part_ = owned_.get();
}

RankView::RankView(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config, int rank,
                   const RankPart* part)
    : whole_model_(&model),
      whole_inventory_(&inventory),
      config_(&config),
      rank_(rank),
      split_(tensor_split(config, rank)),
      context_(context_split(config)),
      dropped_(dropped_tensors(config.config.recompute)),
      stages_(rank_stages(model, config, rank)),
      part_(part) {
  shards_ = sharding_policy(config).shards;
  if (shards_ > 1) shard_ = RankGrid::create(config.degrees).value().coordinates(rank).shard;
}

int64_t RankView::partial_elements(PartialOver over) const {
  int64_t elements = 0;
  if (over == PartialOver::kTiedEnds && !stages_.shares_embedding()) return 0;
  for (int index = 0; index < inventory().num_units(); ++index) {
    if (!stages_.holds(index)) continue;
    const Unit& unit = inventory().units[static_cast<size_t>(index)];
    const int64_t begin = unit.shard_numel(shards_) * shard_, end = begin + unit.shard_numel(shards_);
    for (const PartialRange& range : partial_gradients(unit, split_, over))
      elements += std::max<int64_t>(0, std::min(end, range.end) - std::max(begin, range.begin));
  }
  return elements;
}

}  // namespace fivefold
