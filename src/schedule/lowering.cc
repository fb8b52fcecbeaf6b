#include <algorithm>
#include <map>

#include "schedule/program.h"

namespace fivefold {
namespace {

// An instruction with the units whose weights it reads.
struct Step {
  Instruction instruction;
  std::vector<int> reads;
};

class Lowering {
 public:
  Lowering(const Inventory& inventory, const LoweringOptions& options)
      : inventory_(inventory),
        options_(options),
        chunks_(options.chunks),
        contributions_(static_cast<size_t>(inventory.num_units()), 0) {
    if (chunks_.empty()) chunks_ = {{0, inventory.num_units()}};
  }

  Program run(const Schedule& schedule) {
    program_.num_microbatches = schedule.num_microbatches;
    emit({.op = Opcode::kCountTokens});
    for (const ScheduleAction& action : schedule.ranks[static_cast<size_t>(options_.pipeline_rank)])
      plan_action(action);
    emit_steps();
    emit_pending_waits();
    if (options_.sums_partial_grads) emit({.op = Opcode::kSumPartialGrads});
    if (!count_awaited_) emit({.op = Opcode::kWaitCount});
    emit({.op = Opcode::kGradNorm});
    for (int unit = 0; unit < inventory_.num_units(); ++unit) {
      if (!holds(unit)) continue;
      emit({.op = Opcode::kOptimizerStep, .unit = unit});
      if (options_.sharding.gathers_after_step()) emit({.op = Opcode::kGatherParameters, .unit = unit});
    }
    return std::move(program_);
  }

  // Forward through the virtual stages in order; a rank's chunks are in that order.
  Program run_evaluation() {
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const StageUnits& chunk = chunks_[c];
      const ChunkPeers peers = options_.peers.empty() ? ChunkPeers{} : options_.peers[c];
      if (peers.before >= 0) plan_transfer(Opcode::kRecvActivations, chunk.first - 1, 0, peers.before, false);
      for (int unit = chunk.first; unit < chunk.last; ++unit)
        plan({.op = Opcode::kForward, .unit = unit, .microbatch = 0, .keep = Keep::kNothing},
             unit == inventory_.head() ? loss_reads() : std::vector<int>{unit});
      if (peers.after >= 0) plan_transfer(Opcode::kSendActivations, chunk.last - 1, 0, peers.after, false);
    }
    emit_steps();
    emit_pending_sends();
    return std::move(program_);
  }

 private:
  void emit(const Instruction& instruction) { program_.instructions.push_back(instruction); }
  void plan(const Instruction& instruction, std::vector<int> reads) {
    steps_.push_back({instruction, std::move(reads)});
  }

  bool holds(int unit) const {
    return std::any_of(chunks_.begin(), chunks_.end(), [&](const StageUnits& c) { return c.contains(unit); }) ||
           (unit == inventory_.embedding() && holds_tied_copy());
  }
  // The last stage's copy of a tied embedding.
  bool holds_tied_copy() const {
    return inventory_.tied_embeddings && std::any_of(chunks_.begin(), chunks_.end(), [&](const StageUnits& c) {
             return c.contains(inventory_.head());
           });
  }
  bool holds_first_and_last() const {
    return std::any_of(chunks_.begin(), chunks_.end(),
                       [&](const StageUnits& c) { return c.contains(inventory_.embedding()); }) &&
           std::any_of(chunks_.begin(), chunks_.end(),
                       [&](const StageUnits& c) { return c.contains(inventory_.head()); });
  }
  // With one stage the loss and the embedding's backward of a microbatch follow one another and share one gradient.
  bool joins_tied() const { return inventory_.tied_embeddings && chunks_.size() == 1 && holds_first_and_last(); }

  std::vector<int> loss_reads() const {
    if (inventory_.tied_embeddings) return {inventory_.embedding(), inventory_.head()};
    return {inventory_.head()};
  }
  bool is_layer(int unit) const { return unit != inventory_.embedding() && unit != inventory_.head(); }

  // Recomputed segments lie within a chunk, counted from its first layer.
  int segment_begin(const StageUnits& chunk, int unit) const {
    const int first = std::max(chunk.first, 1);
    return first + (unit - first) / options_.recompute_every * options_.recompute_every;
  }
  int segment_end(const StageUnits& chunk, int unit) const {
    return std::min(segment_begin(chunk, unit) + options_.recompute_every, std::min(chunk.last, inventory_.head()));
  }

  // How often the gradient of a unit is written in a step: a tied matrix whose two ends are apart twice a microbatch.
  int expected_contributions(int unit) const {
    const bool twice =
        unit == inventory_.embedding() && inventory_.tied_embeddings && holds_first_and_last() && !joins_tied();
    return (twice ? 2 : 1) * program_.num_microbatches;
  }
  struct Contribution {
    bool accumulate, last;
  };
  Contribution contribute(int unit) {
    int& count = contributions_[static_cast<size_t>(unit)];
    const Contribution result{count > 0, count + 1 == expected_contributions(unit)};
    ++count;
    return result;
  }

  void plan_action(const ScheduleAction& action) {
    const auto chunk = static_cast<size_t>(action.chunk);
    switch (action.op) {
      case ScheduleOp::kForward:
        return plan_forward(chunks_[chunk], action.microbatch);
      case ScheduleOp::kBackward:
        return plan_backward(chunks_[chunk], action.microbatch, false);
      case ScheduleOp::kBackwardInput:
        return plan_backward(chunks_[chunk], action.microbatch, true);
      case ScheduleOp::kBackwardWeight:
        return plan_weights(chunks_[chunk], action.microbatch);
      case ScheduleOp::kOverlapped:
        plan_forward(chunks_[chunk], action.microbatch);
        return plan_backward(chunks_[static_cast<size_t>(action.backward_chunk)], action.backward_microbatch, false);
      case ScheduleOp::kSendForward:
        return plan_transfer(Opcode::kSendActivations, chunks_[chunk].last - 1, action.microbatch, action.peer,
                             action.joined);
      case ScheduleOp::kRecvForward:
        return plan_transfer(Opcode::kRecvActivations, chunks_[chunk].first - 1, action.microbatch, action.peer,
                             action.joined);
      case ScheduleOp::kSendBackward:
        return plan_transfer(Opcode::kSendGradients, chunks_[chunk].first - 1, action.microbatch, action.peer,
                             action.joined);
      case ScheduleOp::kRecvBackward:
        return plan_transfer(Opcode::kRecvGradients, chunks_[chunk].last - 1, action.microbatch, action.peer,
                             action.joined);
    }
  }

  // `unit`: the one whose output crosses the border.
  void plan_transfer(Opcode op, int unit, int microbatch, int peer, bool joined) {
    plan({.op = op, .unit = unit, .microbatch = microbatch, .peer = peer, .joined = joined}, {});
  }

  void plan_forward(const StageUnits& chunk, int microbatch) {
    for (int unit = chunk.first; unit < chunk.last; ++unit) {
      if (unit == inventory_.head()) continue;  // with the backward: the loss is one instruction
      Keep keep = Keep::kAll;
      if (is_layer(unit) && options_.recompute_every > 0)
        keep = segment_begin(chunk, unit) == unit ? Keep::kInputOnly : Keep::kNothing;
      plan({.op = Opcode::kForward, .unit = unit, .microbatch = microbatch, .keep = keep}, {unit});
    }
  }

  // `input_only`: the weight gradients of layers are left to plan_weights().
  void plan_backward(const StageUnits& chunk, int microbatch, bool input_only) {
    for (int unit = chunk.last - 1; unit >= chunk.first; --unit) {
      if (unit == inventory_.head()) {
        plan_loss(microbatch);
        continue;
      }
      if (unit == inventory_.embedding()) {
        plan_gradient({.op = Opcode::kBackward, .unit = unit, .microbatch = microbatch, .joins_loss = joins_tied()},
                      {});
        continue;
      }
      if (options_.recompute_every > 0 && unit == segment_end(chunk, unit) - 1) {
        for (int again = segment_begin(chunk, unit); again <= unit; ++again)
          plan({.op = Opcode::kRecompute, .unit = again, .microbatch = microbatch, .output_unused = again == unit},
               {again});
      }
      if (input_only)
        plan({.op = Opcode::kBackwardInput, .unit = unit, .microbatch = microbatch}, {unit});
      else
        plan_gradient({.op = Opcode::kBackward, .unit = unit, .microbatch = microbatch}, {unit});
    }
  }

  void plan_weights(const StageUnits& chunk, int microbatch) {
    for (int unit = chunk.last - 1; unit >= chunk.first; --unit)
      if (is_layer(unit)) plan_gradient({.op = Opcode::kBackwardWeight, .unit = unit, .microbatch = microbatch}, {});
  }

  void plan_gradient(Instruction instruction, std::vector<int> reads) {
    const Contribution contribution = contribute(instruction.unit);
    instruction.accumulate = contribution.accumulate;
    instruction.last = contribution.last;
    plan(instruction, std::move(reads));
  }

  void plan_loss(int microbatch) {
    Instruction loss{
        .op = Opcode::kLoss, .unit = inventory_.head(), .microbatch = microbatch, .joins_loss = joins_tied()};
    if (inventory_.tied_embeddings && !joins_tied()) {
      const Contribution tied = contribute(inventory_.embedding());
      loss.accumulate_tied = tied.accumulate;
      loss.last_tied = tied.last;
    } else if (inventory_.tied_embeddings) {
      loss.accumulate_tied = contributions_[static_cast<size_t>(inventory_.embedding())] > 0;
    }
    plan_gradient(loss, loss_reads());
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
      const Opcode op = step.instruction.op;
      for (const int unit : issued[static_cast<size_t>(i)]) emit({.op = Opcode::kUnshard, .unit = unit});
      for (const int unit : read[static_cast<size_t>(i)]) emit({.op = Opcode::kWaitUnshard, .unit = unit});
      if (options_.sharding.gathers_after_step()) {
        for (const int unit : step.reads) {
          if (!touched[static_cast<size_t>(unit)]) emit({.op = Opcode::kWaitParameters, .unit = unit});
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
      for (const int unit : over[static_cast<size_t>(i)]) emit({.op = Opcode::kReshard, .unit = unit});
      if (options_.sharding.shards_grads()) emit_pending_waits();
      if (op == Opcode::kBackward || op == Opcode::kBackwardWeight || op == Opcode::kLoss)
        emit_reductions(step.instruction);
    }
    steps_.clear();
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
      if (op == Opcode::kLoss && inventory_.tied_embeddings)
        emit({.op = Opcode::kAllocateGrads, .unit = inventory_.embedding(), .microbatch = instruction.microbatch});
      if (op == Opcode::kLoss || !instruction.joins_loss)
        emit({.op = Opcode::kAllocateGrads, .unit = instruction.unit, .microbatch = instruction.microbatch});
    }
    emit(instruction);
  }

  void emit_reductions(const Instruction& instruction) {
    if (instruction.op == Opcode::kLoss && inventory_.tied_embeddings && !joins_tied())
      emit_reduction({.unit = inventory_.embedding(),
                      .microbatch = instruction.microbatch,
                      .accumulate = instruction.accumulate_tied,
                      .last = instruction.last_tied});
    emit_reduction(instruction);
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
  std::vector<StageUnits> chunks_;
  Program program_;
  std::vector<Step> steps_;
  std::vector<int> contributions_;  // by unit: how often its gradient was planned to be written
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
