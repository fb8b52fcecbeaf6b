// RankView: the part of a model that one rank of a run holds, as the planner's sums need it. Without tensor parallelism
// that is the whole model, which is not copied. REQUIRES: model, inventory and configuration outlive it.
#pragma once

#include <memory>

#include "schedule/run_program.h"
#include "spec/rank_part.h"

namespace fivefold {

// The group over which partial gradients are summed.
GroupKind group_of(PartialOver over);

class RankView {
 public:
  RankView(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config, int rank);
  // With the rank's part under tensor parallelism already made. REQUIRES: `part` outlives the view; null: no split.
  RankView(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config, int rank,
           const RankPart* part);

  const TensorSplit& split() const { return split_; }
  const ContextSplit& context() const { return context_; }
  const DroppedTensors& dropped() const { return dropped_; }
  const RankStages& stages() const { return stages_; }
  Program program() const { return training_program(inventory(), *config_, stages_, rank_); }
  const ModelSpec& model() const { return part_ != nullptr ? part_->model : *whole_model_; }
  const Inventory& inventory() const { return part_ != nullptr ? part_->inventory : *whole_inventory_; }
  // Elements of partial gradients in this rank's shards, over all units.
  int64_t partial_elements(PartialOver over) const;

 private:
  const ModelSpec* whole_model_;
  const Inventory* whole_inventory_;
  const ResolvedConfig* config_;
  int rank_;
  TensorSplit split_;
  ContextSplit context_;
  DroppedTensors dropped_;
  RankStages stages_;
  std::shared_ptr<const RankPart> owned_;
  const RankPart* part_ = nullptr;
  int64_t shards_ = 1;
  int shard_ = 0;
};

}  // namespace fivefold
