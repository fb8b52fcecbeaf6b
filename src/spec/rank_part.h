// RankPart: the part of a model that one rank computes and holds, as a model and an inventory of its own. Planner and
// engine both start from it. Plain data, pure functions, thread-safe.
#pragma once

#include "spec/inventory.h"
#include "spec/run_config_resolve.h"
#include "spec/tensor_split.h"

namespace fivefold {

struct RankPart {
  TensorSplit split;
  ModelSpec model;      // as narrow as tensor parallelism makes it
  Inventory inventory;  // what this rank holds
};

// The tensor split of `rank` of the grid.
TensorSplit tensor_split(const ResolvedConfig& config, int rank);

// REQUIRES: `whole` is the model that `config` was resolved for; 0 <= rank < world.
RankPart rank_part(const ModelSpec& whole, const ResolvedConfig& config, int rank);

}  // namespace fivefold
