// RankPart: the part of a model that one rank computes and holds, as a model and an inventory of its own. Planner and
// engine both start from it. Plain data, pure functions, thread-safe.
#pragma once

#include <vector>

#include "spec/inventory.h"
#include "spec/operations.h"
#include "spec/pipeline_stages.h"
#include "spec/run_config_resolve.h"
#include "spec/tensor_split.h"

namespace fivefold {

// Which units a rank of a pipeline computes: its chunks, in order of their virtual stages.
struct RankStages {
  std::vector<StageUnits> chunks;
  int num_units = 0;  // of the whole model
  bool tied = false;  // the head's matrix is the embedding's

  bool computes(int unit) const;
  bool computes_embedding() const { return computes(0); }
  bool computes_head() const { return computes(num_units - 1); }
  // The rank has buffers for the unit: it computes it, or, of a tied embedding, its head.
  bool holds(int unit) const { return computes(unit) || (unit == 0 && tied && computes_head()); }
  // The copy of a tied embedding beside the head, the embedding itself being on another rank.
  bool holds_copy(int unit) const { return unit == 0 && holds(0) && !computes_embedding(); }
  // The embedding is on two ranks, this one among them.
  bool shares_embedding() const { return tied && computes_embedding() != computes_head(); }
};

struct RankPart {
  TensorSplit split;
  ContextSplit context;
  DroppedTensors dropped;  // of every layer
  RankStages stages;
  ModelSpec model;      // as narrow as tensor parallelism makes it; all layers
  Inventory inventory;  // all units, as this rank would hold them
};

// The tensor split of `rank` of the grid.
TensorSplit tensor_split(const ResolvedConfig& config, int rank);
ContextSplit context_split(const ResolvedConfig& config);
// The stages of `rank` of the grid. REQUIRES: the configuration was resolved for a model of that many layers.
RankStages rank_stages(const ModelSpec& whole, const ResolvedConfig& config, int rank);

// REQUIRES: `whole` is the model that `config` was resolved for; 0 <= rank < world.
RankPart rank_part(const ModelSpec& whole, const ResolvedConfig& config, int rank);

}  // namespace fivefold
