#include "spec/rank_part.h"

#include "spec/rank_grid.h"

namespace fivefold {

TensorSplit tensor_split(const ResolvedConfig& config, int rank) {
  const Coordinates place = RankGrid::create(config.degrees).value().coordinates(rank);
  return {.size = config.degrees.tp, .rank = place.tp, .sequence_parallel = config.config.parallel.sp};
}

RankPart rank_part(const ModelSpec& whole, const ResolvedConfig& config, int rank) {
  const TensorSplit split = tensor_split(config, rank);
  return {split, split_model(whole, split.size), split_inventory(whole, split)};
}

}  // namespace fivefold
