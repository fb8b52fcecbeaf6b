#include <algorithm>
#include <map>

#include "schedule/program.h"

namespace fivefold {
namespace {

// A compute instruction with the units whose weights it reads.
struct Step {
  Instruction instruction;
  std::vector<int> reads;
};

class Lowering {
 public:
  Lowering(const Inventory& inventory, const LoweringOptions& options) : inventory_(inventory), options_(options) {}

  Program run(const Schedule& schedule) {
    program_.num_microbatches = schedule.num_microbatches;
    emit({.op = Opcode::kCountTokens});
    for (const ScheduleAction& action : schedule.ranks[0]) {
      if (action.op == ScheduleOp::kForward) plan_forward(action.microbatch);
      if (action.op == ScheduleOp::kBackward) plan_backward(action.microbatch);
    }
    emit_steps();
    emit_pending_waits();
    if (options_.sums_partial_grads) emit({.op = Opcode::kSumPartialGrads});
    emit({.op = Opcode::kGradNorm});
    for (int unit = 0; unit < inventory_.num_units(); ++unit) {
      emit({.op = Opcode::kOptimizerStep, .unit = unit});
      if (options_.sharding.gathers_after_step()) emit({.op = Opcode::kGatherParameters, .unit = unit});
    }
    return std::move(program_);
  }

  Program run_evaluation() {
    for (int unit = 0; unit < inventory_.head(); ++unit)
      plan({.op = Opcode::kForward, .unit = unit, .microbatch = 0, .keep = Keep::kNothing}, {unit});
    plan({.op = Opcode::kForward, .unit = inventory_.head(), .microbatch = 0, .keep = Keep::kNothing}, loss_reads());
    emit_steps();
    return std::move(program_);
  }

 private:
  void emit(const Instruction& instruction) { program_.instructions.push_back(instruction); }
  void plan(const Instruction& instruction, std::vector<int> reads) {
    steps_.push_back({instruction, std::move(reads)});
  }

  std::vector<int> loss_reads() const {
    if (inventory_.tied_embeddings) return {inventory_.embedding(), inventory_.head()};
    return {inventory_.head()};
  }
  int num_layers() const { return inventory_.num_units() - 2; }
  static int layer_unit(int layer) { return layer + 1; }
  // First layer of the recomputed segment that contains `layer`.
  int segment_begin(int layer) const { return layer / options_.recompute_every * options_.recompute_every; }
  int segment_end(int layer) const { return std::min(segment_begin(layer) + options_.recompute_every, num_layers()); }

  void plan_forward(int microbatch) {
    plan({.op = Opcode::kForward, .unit = inventory_.embedding(), .microbatch = microbatch}, {inventory_.embedding()});
    for (int layer = 0; layer < num_layers(); ++layer) {
      Keep keep = Keep::kAll;
      if (options_.recompute_every > 0) keep = segment_begin(layer) == layer ? Keep::kInputOnly : Keep::kNothing;
      const int unit = layer_unit(layer);
      plan({.op = Opcode::kForward, .unit = unit, .microbatch = microbatch, .keep = keep}, {unit});
    }
  }

  void plan_backward(int microbatch) {
    const bool accumulate = microbatch > 0, last = microbatch == program_.num_microbatches - 1;
    plan({.op = Opcode::kLoss,
          .unit = inventory_.head(),
          .microbatch = microbatch,
          .accumulate = accumulate,
          .last = last},
         loss_reads());
    for (int layer = num_layers() - 1; layer >= 0; --layer) {
      if (options_.recompute_every > 0 && layer == segment_end(layer) - 1) {
        for (int again = segment_begin(layer); again <= layer; ++again)
          plan({.op = Opcode::kRecompute,
                .unit = layer_unit(again),
                .microbatch = microbatch,
                .output_unused = again == layer},
               {layer_unit(again)});
      }
      plan({.op = Opcode::kBackward,
            .unit = layer_unit(layer),
            .microbatch = microbatch,
            .accumulate = accumulate,
            .last = last},
           {layer_unit(layer)});
    }
    plan({.op = Opcode::kBackward,
          .unit = inventory_.embedding(),
          .microbatch = microbatch,
          .accumulate = accumulate,
          .last = last},
         {});
  }

  // Intervals of steps during which a unit stays gathered (ZeRO-3). A recomputed layer stays gathered until its
  // backward; an interval whose gather would start before the one before it ends is joined to it.
  struct Interval {
    int unit, issue, first, end;  // step indices; gathered in [first, end]
  };
  std::vector<Interval> gather_intervals() const {
    std::vector<Interval> intervals;
    std::map<int, size_t> open;  // unit -> its latest interval
    for (int i = 0; i < static_cast<int>(steps_.size()); ++i) {
      for (const int unit : steps_[static_cast<size_t>(i)].reads) {
        const auto found = open.find(unit);
        if (found != open.end()) {
          Interval& before = intervals[found->second];
          const bool from_recompute = steps_[static_cast<size_t>(before.end)].instruction.op == Opcode::kRecompute;
          if (from_recompute || i - options_.prefetch <= before.end) {
            before.end = i;
            continue;
          }
        }
        open[unit] = intervals.size();
        intervals.push_back({unit, std::max(0, i - options_.prefetch), i, i});
      }
    }
    return intervals;
  }

  void emit_steps() {
    std::vector<Interval> intervals;
    if (options_.sharding.shards_params()) intervals = gather_intervals();
    // Units by the step at which their interval is issued, first read and over, in the order of the intervals.
    std::vector<std::vector<int>> issued(steps_.size()), read(steps_.size()), over(steps_.size());
    for (const Interval& interval : intervals) {
      issued[static_cast<size_t>(interval.issue)].push_back(interval.unit);
      read[static_cast<size_t>(interval.first)].push_back(interval.unit);
      over[static_cast<size_t>(interval.end)].push_back(interval.unit);
    }
    std::vector<bool> touched(static_cast<size_t>(inventory_.num_units()), false);
    for (int i = 0; i < static_cast<int>(steps_.size()); ++i) {
      const Step& step = steps_[static_cast<size_t>(i)];
      for (const int unit : issued[static_cast<size_t>(i)]) emit({.op = Opcode::kUnshard, .unit = unit});
      for (const int unit : read[static_cast<size_t>(i)]) emit({.op = Opcode::kWaitUnshard, .unit = unit});
      if (options_.sharding.gathers_after_step()) {
        for (const int unit : step.reads) {
          if (!touched[static_cast<size_t>(unit)]) emit({.op = Opcode::kWaitParameters, .unit = unit});
          touched[static_cast<size_t>(unit)] = true;
        }
      }
      wait_before_reuse(step.instruction);
      if (step.instruction.op == Opcode::kLoss && !count_awaited_) emit({.op = Opcode::kWaitCount});
      if (step.instruction.op == Opcode::kLoss) count_awaited_ = true;
      emit_step(step.instruction);
      for (const int unit : over[static_cast<size_t>(i)]) emit({.op = Opcode::kReshard, .unit = unit});
      if (options_.sharding.shards_grads()) emit_pending_waits();
      if (const Opcode op = step.instruction.op; op == Opcode::kBackward || op == Opcode::kLoss)
        emit_reduction(step.instruction);
    }
    steps_.clear();
  }

  void emit_pending_waits() {
    for (const int unit : pending_reductions_) emit({.op = Opcode::kWaitReduce, .unit = unit});
    pending_reductions_.clear();
  }

  // The tied matrix's gradient of the microbatch before may still be on its way when the loss needs its buffer again.
  void wait_before_reuse(const Instruction& instruction) {
    if (options_.sharding.shards_grads() && instruction.op == Opcode::kLoss && inventory_.tied_embeddings &&
        std::find(pending_reductions_.begin(), pending_reductions_.end(), inventory_.embedding()) !=
            pending_reductions_.end())
      emit_pending_waits();
  }

  // The tied matrix's gradient is written by the loss and completed by the embedding's backward.
  void emit_step(const Instruction& instruction) {
    const bool writes_grads = instruction.op == Opcode::kBackward || instruction.op == Opcode::kLoss;
    if (writes_grads && options_.sharding.transient_grads()) {
      if (instruction.op == Opcode::kLoss && inventory_.tied_embeddings)
        emit({.op = Opcode::kAllocateGrads, .unit = inventory_.embedding(), .microbatch = instruction.microbatch});
      const bool allocated_by_loss = instruction.unit == inventory_.embedding() && inventory_.tied_embeddings;
      if (!allocated_by_loss)
        emit({.op = Opcode::kAllocateGrads, .unit = instruction.unit, .microbatch = instruction.microbatch});
    }
    emit(instruction);
  }

  // What follows a unit's backward. A reduction of levels 2 and 3 is waited for after the next computation, so that at
  // most two transient gradients are alive.
  void emit_reduction(const Instruction& instruction) {
    const ShardingPolicy& sharding = options_.sharding;
    const Instruction reduce{.op = Opcode::kReduceGrads,
                             .unit = instruction.unit,
                             .microbatch = instruction.microbatch,
                             .accumulate = instruction.accumulate,
                             .last = instruction.last};
    if (sharding.shards_grads()) {
      pending_reductions_.push_back(instruction.unit);
      emit(reduce);
      return;
    }
    if (sharding.transient_grads()) {
      Instruction add = reduce;
      add.op = Opcode::kAccumulateGrads;
      emit(add);
    }
    if (instruction.last && sharding.shards * sharding.replicas > 1) {
      emit(reduce);
      pending_reductions_.push_back(instruction.unit);
    }
  }

  const Inventory& inventory_;
  const LoweringOptions& options_;
  Program program_;
  std::vector<Step> steps_;
  std::vector<int> pending_reductions_;
  bool count_awaited_ = false;
};

}  // namespace

Program lower(const Schedule& schedule, const Inventory& inventory, const LoweringOptions& options) {
  FIVEFOLD_CHECK(schedule.num_stages == 1 && schedule.chunks_per_rank == 1 && schedule.ranks.size() == 1);
  return Lowering(inventory, options).run(schedule);
}

Program lower_evaluation(const Inventory& inventory, const LoweringOptions& options) {
  return Lowering(inventory, options).run_evaluation();
}

std::string_view to_string(Opcode op) {
  static constexpr std::string_view kNames[] = {
      "count_tokens", "wait_count",       "wait_parameters",  "unshard",     "wait_unshard",
      "reshard",      "forward",          "recompute",        "loss",        "allocate_grads",
      "backward",     "accumulate_grads", "reduce_grads",     "wait_reduce", "sum_partial_grads",
      "grad_norm",    "optimizer_step",   "gather_parameters"};
  return kNames[static_cast<size_t>(op)];
}

std::string to_string(const Instruction& instruction, const Inventory& inventory) {
  std::string text(to_string(instruction.op));
  if (instruction.unit >= 0) text += " " + inventory.units[static_cast<size_t>(instruction.unit)].name;
  if (instruction.microbatch >= 0) text += " #" + std::to_string(instruction.microbatch);
  return text;
}

}  // namespace fivefold
