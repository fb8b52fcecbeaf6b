#include "schedule/step_plan.h"

#include <algorithm>

namespace fivefold {

StepPlan::StepPlan(const Inventory& inventory, const LoweringOptions& options)
    : inventory_(inventory),
      options_(options),
      chunks_(options.chunks),
      contributions_(static_cast<size_t>(inventory.num_units()), 0) {
  if (chunks_.empty()) chunks_ = {{0, inventory.num_units()}};
}

void StepPlan::add(const Schedule& schedule) {
  num_microbatches_ = schedule.num_microbatches;
  for (const ScheduleAction& action : schedule.ranks[static_cast<size_t>(options_.pipeline_rank)]) plan_action(action);
}

void StepPlan::plan(const Instruction& instruction, std::vector<int> reads) {
  steps_.push_back({instruction, std::move(reads)});
}

bool StepPlan::holds(int unit) const {
  return std::any_of(chunks_.begin(), chunks_.end(), [&](const StageUnits& c) { return c.contains(unit); }) ||
         (unit == inventory_.embedding() && holds_tied_copy());
}

bool StepPlan::holds_tied_copy() const {
  return inventory_.tied_embeddings && std::any_of(chunks_.begin(), chunks_.end(),
                                                   [&](const StageUnits& c) { return c.contains(inventory_.head()); });
}

bool StepPlan::holds_first_and_last() const {
  return std::any_of(chunks_.begin(), chunks_.end(),
                     [&](const StageUnits& c) { return c.contains(inventory_.embedding()); }) &&
         std::any_of(chunks_.begin(), chunks_.end(),
                     [&](const StageUnits& c) { return c.contains(inventory_.head()); });
}

bool StepPlan::joins_tied() const {
  return inventory_.tied_embeddings && chunks_.size() == 1 && holds_first_and_last();
}

std::vector<int> StepPlan::loss_reads() const {
  if (inventory_.tied_embeddings) return {inventory_.embedding(), inventory_.head()};
  return {inventory_.head()};
}

bool StepPlan::is_layer(int unit) const { return unit != inventory_.embedding() && unit != inventory_.head(); }

StageUnits StepPlan::bucket_of(int unit) const {
  for (const StageUnits& chunk : chunks_) {
    if (!is_layer(unit) || !chunk.contains(unit)) continue;
    const int first = std::max(chunk.first, 1), size = options_.bucket_layers;
    const int begin = first + (unit - first) / size * size;
    return {begin, std::min(begin + size, std::min(chunk.last, inventory_.head()))};
  }
  return {unit, unit + 1};
}

int StepPlan::segment_begin(const StageUnits& chunk, int unit) const {
  const int first = std::max(chunk.first, 1);
  return first + (unit - first) / options_.recompute_every * options_.recompute_every;
}

int StepPlan::segment_end(const StageUnits& chunk, int unit) const {
  return std::min(segment_begin(chunk, unit) + options_.recompute_every, std::min(chunk.last, inventory_.head()));
}

int StepPlan::expected_contributions(int unit) const {
  const bool twice =
      unit == inventory_.embedding() && inventory_.tied_embeddings && holds_first_and_last() && !joins_tied();
  return (twice ? 2 : 1) * num_microbatches_;
}

StepPlan::Contribution StepPlan::contribute(int unit) {
  int& count = contributions_[static_cast<size_t>(unit)];
  const Contribution result{count > 0, count + 1 == expected_contributions(unit)};
  ++count;
  return result;
}

void StepPlan::plan_action(const ScheduleAction& action) {
  const auto chunk = static_cast<size_t>(action.chunk);
  switch (action.op) {
    case ScheduleOp::kForward:
      receive(ScheduleOp::kRecvForward, action.chunk, action.microbatch);
      return plan_forward(chunks_[chunk], action.microbatch);
    case ScheduleOp::kBackward:
    case ScheduleOp::kBackwardInput:
      receive(ScheduleOp::kRecvBackward, action.chunk, action.microbatch);
      return plan_backward(chunks_[chunk], action.microbatch, action.op == ScheduleOp::kBackwardInput);
    case ScheduleOp::kBackwardWeight:
      return plan_weights(chunks_[chunk], action.microbatch);
    case ScheduleOp::kOverlapped:
      receive(ScheduleOp::kRecvForward, action.chunk, action.microbatch);
      plan_forward(chunks_[chunk], action.microbatch);
      receive(ScheduleOp::kRecvBackward, action.backward_chunk, action.backward_microbatch);
      return plan_backward(chunks_[static_cast<size_t>(action.backward_chunk)], action.backward_microbatch, false);
    case ScheduleOp::kSendForward:
    case ScheduleOp::kRecvForward:
    case ScheduleOp::kSendBackward:
    case ScheduleOp::kRecvBackward:
      break;
  }
  if (!options_.receives_at_use) return plan_transfer(action);
  if (!action.joined) batch_has_send_ = false;
  if (!is_send(action.op)) return put_off_.push_back(action);
  ScheduleAction send = action;
  send.joined = batch_has_send_;
  batch_has_send_ = true;
  plan_transfer(send);
}

void StepPlan::receive(ScheduleOp op, int chunk, int microbatch) {
  const auto needed = std::find_if(put_off_.begin(), put_off_.end(), [&](const ScheduleAction& action) {
    return action.op == op && action.chunk == chunk && action.microbatch == microbatch;
  });
  if (needed == put_off_.end()) return;
  const int peer = needed->peer;
  const auto end = needed + 1;
  std::vector<ScheduleAction> others;
  for (auto action = put_off_.begin(); action != end; ++action) {
    if (action->peer != peer) {
      others.push_back(*action);
      continue;
    }
    action->joined = false;
    plan_transfer(*action);
  }
  others.insert(others.end(), end, put_off_.end());
  put_off_ = std::move(others);
}

void StepPlan::plan_transfer(const ScheduleAction& action) {
  const StageUnits& chunk = chunks_[static_cast<size_t>(action.chunk)];
  const auto plan_as = [&](Opcode op, int unit) {
    plan_transfer(op, unit, action.microbatch, action.peer, action.joined);
  };
  switch (action.op) {
    case ScheduleOp::kSendForward:
      return plan_as(Opcode::kSendActivations, chunk.last - 1);
    case ScheduleOp::kRecvForward:
      return plan_as(Opcode::kRecvActivations, chunk.first - 1);
    case ScheduleOp::kSendBackward:
      return plan_as(Opcode::kSendGradients, chunk.first - 1);
    case ScheduleOp::kRecvBackward:
      return plan_as(Opcode::kRecvGradients, chunk.last - 1);
    default:
      FIVEFOLD_CHECK(false);
  }
}

void StepPlan::plan_transfer(Opcode op, int unit, int microbatch, int peer, bool joined) {
  plan({.op = op, .unit = unit, .microbatch = microbatch, .peer = peer, .joined = joined}, {});
}

void StepPlan::plan_forward(const StageUnits& chunk, int microbatch) {
  for (int unit = chunk.first; unit < chunk.last; ++unit) {
    if (unit == inventory_.head()) continue;  // with the backward: the loss is one instruction
    Keep keep = Keep::kAll;
    if (is_layer(unit) && options_.recompute_every > 0)
      keep = segment_begin(chunk, unit) == unit ? Keep::kInputOnly : Keep::kNothing;
    plan({.op = Opcode::kForward, .unit = unit, .microbatch = microbatch, .keep = keep}, {unit});
  }
}

void StepPlan::plan_backward(const StageUnits& chunk, int microbatch, bool input_only) {
  for (int unit = chunk.last - 1; unit >= chunk.first; --unit) {
    if (unit == inventory_.head()) {
      plan_loss(microbatch);
      continue;
    }
    if (unit == inventory_.embedding()) {
      plan_gradient({.op = Opcode::kBackward, .unit = unit, .microbatch = microbatch, .joins_loss = joins_tied()}, {});
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

void StepPlan::plan_weights(const StageUnits& chunk, int microbatch) {
  for (int unit = chunk.last - 1; unit >= chunk.first; --unit) {
    if (!is_layer(unit)) continue;
    // The gradients of an adapter's two matrices are made with the other one.
    const std::vector<ParameterEntry>& parameters = inventory_.units[static_cast<size_t>(unit)].parameters;
    const bool adapts = std::any_of(parameters.begin(), parameters.end(), [](const auto& p) { return p.adapter; });
    plan_gradient({.op = Opcode::kBackwardWeight, .unit = unit, .microbatch = microbatch},
                  adapts ? std::vector<int>{unit} : std::vector<int>{});
  }
}

void StepPlan::plan_gradient(Instruction instruction, std::vector<int> reads) {
  const Contribution contribution = contribute(instruction.unit);
  instruction.accumulate = contribution.accumulate;
  instruction.last = contribution.last;
  plan(instruction, std::move(reads));
}

void StepPlan::plan_loss(int microbatch) {
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

void StepPlan::add_evaluation() {
  for (size_t c = 0; c < chunks_.size(); ++c) {
    const StageUnits& chunk = chunks_[c];
    const ChunkPeers peers = options_.peers.empty() ? ChunkPeers{} : options_.peers[c];
    if (peers.before >= 0) plan_transfer(Opcode::kRecvActivations, chunk.first - 1, 0, peers.before, false);
    for (int unit = chunk.first; unit < chunk.last; ++unit)
      plan({.op = Opcode::kForward, .unit = unit, .microbatch = 0, .keep = Keep::kNothing},
           unit == inventory_.head() ? loss_reads() : std::vector<int>{unit});
    if (peers.after >= 0) plan_transfer(Opcode::kSendActivations, chunk.last - 1, 0, peers.after, false);
  }
}

}  // namespace fivefold
