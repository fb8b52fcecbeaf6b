// The part of lowering that follows from the schedule alone: computations and transfers of one rank in order, each with
// the units whose weights it reads, and which gradients it adds to. Where weights are gathered and gradients reduced
// around them is lowering.cc's. Not for others than lowering.cc.
#pragma once

#include <vector>

#include "schedule/program.h"

namespace fivefold {

struct PlannedStep {
  Instruction instruction;
  std::vector<int> reads;
};

class StepPlan {
 public:
  // REQUIRES: both outlive the object.
  StepPlan(const Inventory& inventory, const LoweringOptions& options);

  // A training step.
  void add(const Schedule& schedule);
  // Forward through the virtual stages in order; a rank's chunks are in that order.
  void add_evaluation();
  bool holds(int unit) const;
  // With one stage the loss and the embedding's backward of a microbatch follow one another and share one gradient.
  bool joins_tied() const;
  // Layers of a chunk in groups from its first; embedding and head by themselves.
  StageUnits bucket_of(int unit) const;
  const std::vector<PlannedStep>& steps() const { return steps_; }

 private:
  struct Contribution {
    bool accumulate, last;
  };
  void plan(const Instruction& instruction, std::vector<int> reads);
  // The last stage's copy of a tied embedding.
  bool holds_tied_copy() const;
  bool holds_first_and_last() const;
  std::vector<int> loss_reads() const;
  bool is_layer(int unit) const;
  // Recomputed segments lie within a chunk, counted from its first layer.
  int segment_begin(const StageUnits& chunk, int unit) const;
  int segment_end(const StageUnits& chunk, int unit) const;
  // How often the gradient of a unit is written in a step: a tied matrix whose two ends are apart twice a microbatch.
  int expected_contributions(int unit) const;
  Contribution contribute(int unit);
  void plan_action(const ScheduleAction& action);
  void plan_transfer(const ScheduleAction& action);
  // The inputs of a computation on a chunk that have been put off, and what came before them from the same rank.
  void receive(ScheduleOp op, int chunk, int microbatch);
  // `unit`: the one whose output crosses the border.
  void plan_transfer(Opcode op, int unit, int microbatch, int peer, bool joined);
  void plan_forward(const StageUnits& chunk, int microbatch);
  // `input_only`: the weight gradients of layers are left to plan_weights().
  void plan_backward(const StageUnits& chunk, int microbatch, bool input_only);
  void plan_weights(const StageUnits& chunk, int microbatch);
  void plan_gradient(Instruction instruction, std::vector<int> reads);
  void plan_loss(int microbatch);

  const Inventory& inventory_;
  const LoweringOptions& options_;
  std::vector<StageUnits> chunks_;
  std::vector<PlannedStep> steps_;
  std::vector<ScheduleAction> put_off_;  // receives, in the schedule's order
  bool batch_has_send_ = false;          // of the joined transfers so far
  std::vector<int> contributions_;       // by unit: how often its gradient was planned to be written
  int num_microbatches_ = 1;
};

}  // namespace fivefold
