#include "spec/rank_part.h"

#include <algorithm>

#include "spec/rank_grid.h"

namespace fivefold {
namespace {

Coordinates coordinates(const ResolvedConfig& config, int rank) {
  return RankGrid::create(config.degrees).value().coordinates(rank);
}

}  // namespace

bool RankStages::computes(int unit) const {
  return std::any_of(chunks.begin(), chunks.end(), [unit](const StageUnits& chunk) { return chunk.contains(unit); });
}

TensorSplit tensor_split(const ResolvedConfig& config, int rank) {
  return {
      .size = config.degrees.tp, .rank = coordinates(config, rank).tp, .sequence_parallel = config.config.parallel.sp};
}

ContextSplit context_split(const ResolvedConfig& config) {
  return {.degree = config.degrees.cp, .kind = config.config.parallel.cp_kind};
}

RankStages rank_stages(const ModelSpec& whole, const ResolvedConfig& config, int rank) {
  const ParallelConfig& parallel = config.config.parallel;
  const std::vector<StageUnits> stages = stage_units(config.layers_per_chunk);
  RankStages own{.chunks = {}, .num_units = static_cast<int>(whole.layers.size()) + 2, .tied = whole.tied_embeddings};
  const int place = coordinates(config, rank).pp;
  for (int chunk = 0; chunk < parallel.vpp; ++chunk)
    own.chunks.push_back(stages[static_cast<size_t>(virtual_stage(placement_of(parallel), parallel.pp, place, chunk))]);
  return own;
}

RankPart rank_part(const ModelSpec& whole, const ResolvedConfig& config, int rank) {
  FIVEFOLD_CHECK(whole.adapter == with_method(whole, config.config.method).adapter,
                 "the model is not the one that the method trains");
  const TensorSplit split = tensor_split(config, rank);
  return {split,
          context_split(config),
          dropped_tensors(config.config.recompute),
          rank_stages(whole, config, rank),
          split_model(whole, split.size),
          split_inventory(whole, split)};
}

}  // namespace fivefold
