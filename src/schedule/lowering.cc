#include <algorithm>
#include <map>

#include "schedule/program.h"
#include "schedule/step_plan.h"

namespace fivefold {
namespace {

class Lowering {
 public:
  Lowering(const Inventory& inventory, const LoweringOptions& options)
      : inventory_(inventory), options_(options), plan_(inventory, options) {}

  Program run(const Schedule& schedule) {
    program_.num_microbatches = schedule.num_microbatches;
    emit({.op = Opcode::kCountTokens});
    plan_.add(schedule);
    emit_steps();
    emit_pending_waits();
    if (options_.sums_partial_grads) emit({.op = Opcode::kSumPartialGrads});
    if (!count_awaited_) emit({.op = Opcode::kWaitCount});
    emit({.op = Opcode::kGradNorm});
    for (int unit = 0; unit < inventory_.num_units(); ++unit) {
      if (!plan_.holds(unit)) continue;
      if (trained(unit)) emit({.op = Opcode::kOptimizerStep, .unit = unit});
      const StageUnits bucket = plan_.bucket_of(unit);
      if (options_.sharding.gathers_after_step() && unit == bucket.last - 1) emit_gathers_after_step(bucket);
    }
    return std::move(program_);
  }

  Program run_evaluation() {
    plan_.add_evaluation();
    emit_steps();
    emit_pending_sends();
    return std::move(program_);
  }

 private:
  void emit(const Instruction& instruction) { program_.instructions.push_back(instruction); }
  bool trained(int unit) const { return inventory_.units[static_cast<size_t>(unit)].trained(); }
  void emit_gathers_after_step(const StageUnits& bucket) {
    bool joined = false;
    for (int unit = bucket.first; unit < bucket.last; ++unit) {
      if (!trained(unit)) continue;
      emit({.op = Opcode::kGatherParameters, .unit = unit, .joined = joined});
      joined = true;
    }
  }
  // One collective for all units of a bucket.
  void emit_joined(Opcode op, const StageUnits& bucket) {
    for (int unit = bucket.first; unit < bucket.last; ++unit)
      emit({.op = op, .unit = unit, .joined = unit > bucket.first});
  }
  void emit_each(Opcode op, const StageUnits& bucket) {
    for (int unit = bucket.first; unit < bucket.last; ++unit) emit({.op = op, .unit = unit});
  }
  // Intervals of steps during which a bucket stays gathered (ZeRO-3). A recomputed layer stays gathered until its
  // backward; an interval whose gather would start before the one before it ends is joined to it, and so are those of
  // neighbours in a bucket.
  struct Interval {
    StageUnits bucket;
    int issue, first, end;  // step indices; gathered in [first, end]
  };
  std::vector<Interval> gather_intervals() const {
    std::vector<Interval> intervals;
    std::map<int, size_t> open;  // first unit of a bucket -> its latest interval
    for (int i = 0; i < static_cast<int>(steps().size()); ++i) {
      for (const int unit : steps()[static_cast<size_t>(i)].reads) {
        const StageUnits bucket = plan_.bucket_of(unit);
        const int ahead = bucket.last - bucket.first > 1 ? std::max(options_.prefetch, 1) : options_.prefetch;
        const auto found = open.find(bucket.first);
        if (found != open.end()) {
          Interval& before = intervals[found->second];
          const bool from_recompute = steps()[static_cast<size_t>(before.end)].instruction.op == Opcode::kRecompute;
          if (from_recompute || i - ahead <= before.end) {
            before.end = i;
            continue;
          }
        }
        open[bucket.first] = intervals.size();
        // Not between transfers that are one call.
        int issue = std::max(0, i - options_.prefetch);
        while (steps()[static_cast<size_t>(issue)].instruction.joined) --issue;
        intervals.push_back({bucket, issue, i, i});
      }
    }
    return intervals;
  }

  void emit_steps() {
    std::vector<Interval> intervals;
    if (options_.sharding.shards_params()) intervals = gather_intervals();
    // Buckets by the step at which their interval is issued, first read and over, in the order of the intervals.
    std::vector<std::vector<StageUnits>> issued(steps().size()), read(steps().size()), over(steps().size());
    for (const Interval& interval : intervals) {
      issued[static_cast<size_t>(interval.issue)].push_back(interval.bucket);
      read[static_cast<size_t>(interval.first)].push_back(interval.bucket);
      over[static_cast<size_t>(interval.end)].push_back(interval.bucket);
    }
    std::vector<bool> touched(static_cast<size_t>(inventory_.num_units()), false);
    for (int i = 0; i < static_cast<int>(steps().size()); ++i) {
      const PlannedStep& step = steps()[static_cast<size_t>(i)];
      const Opcode op = step.instruction.op;
      for (const StageUnits& bucket : issued[static_cast<size_t>(i)]) emit_joined(Opcode::kUnshard, bucket);
      for (const StageUnits& bucket : read[static_cast<size_t>(i)]) emit_each(Opcode::kWaitUnshard, bucket);
      if (options_.sharding.gathers_after_step()) {
        for (const int unit : step.reads) {
          if (!touched[static_cast<size_t>(unit)] && trained(unit)) emit({.op = Opcode::kWaitParameters, .unit = unit});
          touched[static_cast<size_t>(unit)] = true;
        }
      }
      if (is_transfer(op)) {
        emit_transfer(step.instruction);
        continue;
      }
      wait_before_reuse(step.instruction);
      if (op == Opcode::kLoss && !count_awaited_) emit({.op = Opcode::kWaitCount});
      if (op == Opcode::kLoss) count_awaited_ = true;
      emit_step(step.instruction);
      for (const StageUnits& bucket : over[static_cast<size_t>(i)]) emit_each(Opcode::kReshard, bucket);
      if (options_.sharding.shards_grads()) emit_pending_waits();
      if (op == Opcode::kBackward || op == Opcode::kBackwardWeight || op == Opcode::kLoss)
        emit_reductions(step.instruction);
    }
    emit_pending_sends();
  }

  // A buffer that was sent is freed before the next transfers are issued, so that it does not depend on timing.
  void emit_transfer(const Instruction& instruction) {
    if (!instruction.joined) emit_pending_sends();
    emit(instruction);
    if (is_send(instruction.op)) pending_sends_.push_back(instruction);
  }
  void emit_pending_sends() {
    for (const Instruction& sent : pending_sends_) {
      Instruction wait = sent;
      wait.op = Opcode::kWaitSend;
      wait.gradient = sent.op == Opcode::kSendGradients;
      wait.joined = false;
      emit(wait);
    }
    pending_sends_.clear();
  }

  void emit_pending_waits() {
    for (const int unit : pending_reductions_) emit({.op = Opcode::kWaitReduce, .unit = unit});
    pending_reductions_.clear();
  }

  // The gradient of an earlier microbatch may still be on its way when its buffer is needed again.
  void wait_before_reuse(const Instruction& instruction) {
    if (!options_.sharding.shards_grads()) return;
    const auto waits_for = [&](int unit) {
      return std::find(pending_reductions_.begin(), pending_reductions_.end(), unit) != pending_reductions_.end();
    };
    const Opcode op = instruction.op;
    const bool writes = op == Opcode::kLoss || op == Opcode::kBackward || op == Opcode::kBackwardWeight;
    const bool tied = op == Opcode::kLoss && inventory_.tied_embeddings && waits_for(inventory_.embedding());
    if (tied || (writes && waits_for(instruction.unit))) emit_pending_waits();
  }

  void emit_step(const Instruction& instruction) {
    const Opcode op = instruction.op;
    const bool writes_grads = op == Opcode::kBackward || op == Opcode::kBackwardWeight || op == Opcode::kLoss;
    if (writes_grads && options_.sharding.transient_grads()) {
      if (op == Opcode::kLoss && inventory_.tied_embeddings && trained(inventory_.embedding()))
        emit({.op = Opcode::kAllocateGrads, .unit = inventory_.embedding(), .microbatch = instruction.microbatch});
      if ((op == Opcode::kLoss || !instruction.joins_loss) && trained(instruction.unit))
        emit({.op = Opcode::kAllocateGrads, .unit = instruction.unit, .microbatch = instruction.microbatch});
    }
    emit(instruction);
  }

  void emit_reductions(const Instruction& instruction) {
    if (instruction.op == Opcode::kLoss && inventory_.tied_embeddings && !plan_.joins_tied())
      emit_reduction({.unit = inventory_.embedding(),
                      .microbatch = instruction.microbatch,
                      .accumulate = instruction.accumulate_tied,
                      .last = instruction.last_tied});
    emit_reduction(instruction);
  }

  // What follows a unit's backward. The reductions of a bucket are one call, after the backward of its first layer. One
  // of levels 2 and 3 is waited for after the next computation, so that at most two buckets' transient gradients are
  // alive.
  void emit_reduction(const Instruction& instruction) {
    const ShardingPolicy& sharding = options_.sharding;
    const Instruction reduce{.op = Opcode::kReduceGrads,
                             .unit = instruction.unit,
                             .microbatch = instruction.microbatch,
                             .accumulate = instruction.accumulate,
                             .last = instruction.last};
    if (!trained(instruction.unit)) {
      // Nothing to reduce, but perhaps the last unit of a bucket whose others have.
    } else if (sharding.shards_grads()) {
      bucket_reductions_.push_back(reduce);
    } else {
      if (sharding.transient_grads()) {
        Instruction add = reduce;
        add.op = Opcode::kAccumulateGrads;
        emit(add);
      }
      if (instruction.last && sharding.shards * sharding.replicas > 1) bucket_reductions_.push_back(reduce);
    }
    if (instruction.unit != plan_.bucket_of(instruction.unit).first) return;
    for (Instruction& each : bucket_reductions_) {
      each.joined = &each != &bucket_reductions_.front();
      emit(each);
      pending_reductions_.push_back(each.unit);
    }
    bucket_reductions_.clear();
  }

  const std::vector<PlannedStep>& steps() const { return plan_.steps(); }

  const Inventory& inventory_;
  const LoweringOptions& options_;
  StepPlan plan_;
  Program program_;
  std::vector<Instruction> bucket_reductions_;  // of a bucket whose backward is under way
  std::vector<int> pending_reductions_;
  std::vector<Instruction> pending_sends_;
  bool count_awaited_ = false;
};

}  // namespace

Program lower(const Schedule& schedule, const Inventory& inventory, const LoweringOptions& options) {
  FIVEFOLD_CHECK(options.pipeline_rank < static_cast<int>(schedule.ranks.size()));
  FIVEFOLD_CHECK(std::max<size_t>(options.chunks.size(), 1) == static_cast<size_t>(schedule.chunks_per_rank));
  return Lowering(inventory, options).run(schedule);
}

Program lower_evaluation(const Inventory& inventory, const LoweringOptions& options) {
  return Lowering(inventory, options).run_evaluation();
}

std::string_view to_string(Opcode op) {
  static constexpr std::string_view kNames[] = {"count_tokens",     "wait_count",
                                                "wait_parameters",  "unshard",
                                                "wait_unshard",     "reshard",
                                                "send_activations", "recv_activations",
                                                "send_gradients",   "recv_gradients",
                                                "wait_send",        "forward",
                                                "recompute",        "loss",
                                                "allocate_grads",   "backward",
                                                "backward_input",   "backward_weight",
                                                "accumulate_grads", "reduce_grads",
                                                "wait_reduce",      "sum_partial_grads",
                                                "grad_norm",        "optimizer_step",
                                                "gather_parameters"};
  return kNames[static_cast<size_t>(op)];
}

std::string to_string(const Instruction& instruction, const Inventory& inventory) {
  std::string text(to_string(instruction.op));
  if (instruction.unit >= 0) text += " " + inventory.units[static_cast<size_t>(instruction.unit)].name;
  if (instruction.microbatch >= 0) text += " #" + std::to_string(instruction.microbatch);
  return text;
}

}  // namespace fivefold
