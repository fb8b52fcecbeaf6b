#include "planner/rank_view.h"

#include <algorithm>

#include "spec/rank_grid.h"

namespace fivefold {

RankView::RankView(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config, int rank)
    : whole_model_(&model), whole_inventory_(&inventory), split_(tensor_split(config, rank)) {
  if (split_.size > 1) part_ = rank_part(model, config, rank);
  shards_ = sharding_policy(config).shards;
  if (shards_ > 1) shard_ = RankGrid::create(config.degrees).value().coordinates(rank).shard;
}

int64_t RankView::partial_elements(PartialOver over) const {
  int64_t elements = 0;
  for (const Unit& unit : inventory().units) {
    const int64_t begin = unit.shard_numel(shards_) * shard_, end = begin + unit.shard_numel(shards_);
    for (const PartialRange& range : partial_gradients(unit, split_, over))
      elements += std::max<int64_t>(0, std::min(end, range.end) - std::max(begin, range.begin));
  }
  return elements;
}

}  // namespace fivefold
