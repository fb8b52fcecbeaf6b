#include "runtime/interpreter.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "comm/comm_error.h"

namespace fivefold {
namespace {

double clock_seconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The `index`-th of `count` equal parts of a buffer.
Buffer part(const Buffer& buffer, int count, int index) {
  Buffer piece = buffer;
  piece.bytes = buffer.bytes / count;
  piece.pointer = static_cast<std::byte*>(buffer.pointer) + piece.bytes * index;
  return piece;
}

template <typename T>
T& at_unit(std::vector<T>& items, int unit) {
  if (items.size() <= static_cast<size_t>(unit)) items.resize(static_cast<size_t>(unit) + 1);
  return items[static_cast<size_t>(unit)];
}

CallOptions async_call() { return {.mode = Mode::kAsync, .stream = {}, .keep_alive = {}}; }

}  // namespace

Interpreter::Interpreter(Communicator& communicator, const Groups& groups, const ShardingPolicy& sharding,
                         StageExecutor& executor)
    : communicator_(communicator),
      groups_(groups),
      sharding_(sharding),
      executor_(executor),
      origin_s_(clock_seconds(CLOCK_MONOTONIC)) {
  FIVEFOLD_CHECK(groups_.shard.size() == sharding_.shards && groups_.replicate.size() == sharding_.replicas);
}

Interpreter::~Interpreter() {
  reductions_.push_back(std::move(parameter_gathers_));
  reductions_.push_back(std::move(unshards_));
  reductions_.push_back({count_, sends_});
  for (const std::vector<Work>& works : reductions_) {
    for (const Work& work : works) {
      try {
        work.wait_host();
      } catch (const std::exception&) {
        // Reported where the abort came from.
      }
    }
  }
}

StepOutcome Interpreter::run_step(const Program& program, const std::function<bool(double, double)>& accept,
                                  bool request_stop) {
  const double begin = clock_seconds(CLOCK_MONOTONIC);
  outcome_ = {};
  request_stop_ = request_stop;
  times_.assign(program.instructions.size(), {});
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    const double wall = clock_seconds(CLOCK_MONOTONIC), cpu = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    left_at_ = i;
    run(instruction, i + 1 < program.instructions.size() ? &program.instructions[i + 1] : nullptr);
    if (instruction.op == Opcode::kGradNorm)
      outcome_.updated = outcome_.valid_tokens > 0 && (!accept || accept(outcome_.loss, outcome_.grad_norm));
    times_[i] = {wall - origin_s_, clock_seconds(CLOCK_MONOTONIC) - origin_s_,
                 clock_seconds(CLOCK_THREAD_CPUTIME_ID) - cpu};
  }
  left_at_.reset();
  outcome_.seconds = clock_seconds(CLOCK_MONOTONIC) - begin;
  return outcome_;
}

void Interpreter::run_evaluation(const Program& program) {
  finish_parameter_gathers();
  const std::vector<Instruction>& all = program.instructions;
  for (size_t i = 0; i < all.size(); ++i) run(all[i], i + 1 < all.size() ? &all[i + 1] : nullptr);
}

void Interpreter::finish_parameter_gathers() { wait_all(parameter_gathers_); }

void Interpreter::wait_all(std::vector<Work>& works) {
  for (const Work& work : works) work.wait_host();
  works.clear();
}

// The wish to stop travels with the count, so that all ranks leave the loop after the same step.
void Interpreter::count_tokens() {
  counts_ = {groups_.counts_samples ? executor_.local_valid_tokens() : 0, request_stop_ ? 1 : 0};
  count_ = communicator_.all_reduce(groups_.world, {counts_.data(), sizeof counts_, DType::kInt64, {}}, Reduction::kSum,
                                    Purpose::kTokenCount, async_call());
}

void Interpreter::wait_count() {
  count_.wait_host();
  outcome_.valid_tokens = counts_[0];
  outcome_.stop_requested = counts_[1] > 0;
  executor_.set_global_valid_tokens(counts_[0]);
}

// Of the ranks that hold the same shard one adds its squares, of those that see the same samples one adds their losses;
// every rank learns both sums.
void Interpreter::loss_and_norm() {
  const bool counts_shard = groups_.replicate.rank() == 0;
  std::array<double, 2> sums{groups_.counts_samples ? executor_.local_loss_sum() : 0,
                             counts_shard ? executor_.local_squared_grad_norm() : 0};
  communicator_.all_reduce(groups_.world, {sums.data(), sizeof sums, DType::kFloat64, {}}, Reduction::kSum,
                           Purpose::kGradNorm);
  outcome_.loss = sums[0] / static_cast<double>(std::max<int64_t>(outcome_.valid_tokens, 1));
  outcome_.grad_norm = std::sqrt(sums[1]);
  executor_.set_grad_norm(outcome_.grad_norm);
}

const std::optional<Group>& Interpreter::group_of(PartialOver over) const {
  switch (over) {
    case PartialOver::kTensorGroup:
      return groups_.tensor;
    case PartialOver::kKvHolders:
      return groups_.kv_holders;
    case PartialOver::kTiedEnds:
      return groups_.tied_ends;
  }
  FIVEFOLD_CHECK(false);
}

// Transfers that are joined are one batch. A batch with a receive is waited for at once: what follows needs it.
void Interpreter::transfer(const Instruction& instruction, bool complete) {
  const bool send = is_send(instruction.op);
  const bool gradients = instruction.op == Opcode::kSendGradients || instruction.op == Opcode::kRecvGradients;
  const Purpose purpose = gradients ? Purpose::kActivationGradients : Purpose::kActivations;
  batch_.push_back({.kind = send ? CollectiveKind::kSend : CollectiveKind::kRecv,
                    .buffer = send ? executor_.outgoing(instruction) : executor_.incoming(instruction),
                    .peer = instruction.peer,
                    .purpose = purpose});
  batch_receives_ |= !send;
  if (!complete) return;
  sends_ = communicator_.batch_send_recv(*groups_.pipeline, batch_, purpose, async_call());
  batch_.clear();
  if (std::exchange(batch_receives_, false)) sends_.wait_host();
}

void Interpreter::sum_partial_grads(PartialOver over) {
  const std::optional<Group>& group = group_of(over);
  if (!group) return;
  const Buffer sums = executor_.pack_partial_grads(over);
  if (sums.bytes == 0) return;
  communicator_.all_reduce(*group, sums, Reduction::kSum, Purpose::kGradients);
  executor_.unpack_partial_grads(over);
}

// Weights of a bucket's units, gathered in one call.
void Interpreter::gather(const Instruction& instruction, bool complete, std::vector<Work>& works) {
  const int unit = instruction.unit;
  bucket_.units.push_back(unit);
  if (instruction.op == Opcode::kUnshard) {
    executor_.allocate_unsharded(unit);
    for (const InOut& buffers : executor_.unsharded_params(unit)) bucket_.buffers.push_back(buffers);
  } else {
    const Buffer full = executor_.params(unit);
    bucket_.buffers.push_back({part(full, sharding_.shards, groups_.shard.rank()), full});
  }
  if (!complete) return;
  const Work work = communicator_.all_gather(groups_.shard, bucket_.buffers, Purpose::kParameters, async_call());
  for (const int each : bucket_.units) at_unit(works, each) = work;
  bucket_ = {};
}

// Over the shard group into this rank's shard; when nothing follows this step, over the replicas too. Calls of a rank
// run in program order, so the second reads what the first wrote.
void Interpreter::reduce(const Instruction& instruction, bool complete) {
  const int unit = instruction.unit;
  const Buffer grads = executor_.grads(unit);
  bucket_.units.push_back(unit);
  if (sharding_.shards_grads())
    bucket_.buffers.push_back({executor_.transient_grads(unit), grads});
  else
    bucket_.buffers.push_back({grads, part(grads, sharding_.shards, groups_.shard.rank())});
  if (!complete) return;
  std::vector<Work> works;
  if (sharding_.shards_grads() || sharding_.shards > 1)
    works.push_back(communicator_.reduce_scatter(
        groups_.shard, bucket_.buffers, Reduction::kSum, Purpose::kGradients, async_call(),
        sharding_.shards_grads() && instruction.accumulate ? Output::kAccumulate : Output::kOverwrite));
  if (instruction.last && sharding_.replicas > 1) {
    std::vector<Buffer> shards;
    for (const InOut& buffers : bucket_.buffers) shards.push_back(buffers.output);
    works.push_back(
        communicator_.all_reduce(groups_.replicate, shards, Reduction::kSum, Purpose::kGradients, async_call()));
  }
  for (const int each : bucket_.units) at_unit(reductions_, each) = works;
  bucket_ = {};
}

// What is thrown here unwinds the executor, whose buffers the comm thread and the peers may be using: the abort ends
// those calls, so that the destructor's wait is short.
void Interpreter::run(const Instruction& instruction, const Instruction* next) {
  try {
    const bool complete = next == nullptr || !next->joined;
    if (is_transfer(instruction.op)) return transfer(instruction, complete);
    execute(instruction, complete);
  } catch (...) {
    communicator_.abort(error_text(std::current_exception()));
    throw;
  }
}

void Interpreter::execute(const Instruction& instruction, bool complete) {
  const int unit = instruction.unit;
  switch (instruction.op) {
    case Opcode::kCountTokens:
      count_tokens();
      return;
    case Opcode::kWaitCount:
      wait_count();
      return;
    case Opcode::kWaitParameters:
      at_unit(parameter_gathers_, unit).wait_host();
      return;
    case Opcode::kUnshard:
      gather(instruction, complete, unshards_);
      return;
    case Opcode::kWaitUnshard:
      at_unit(unshards_, unit).wait_host();
      return;
    case Opcode::kReshard:
      executor_.free_unsharded(unit);
      return;
    case Opcode::kForward:
      executor_.forward(unit, instruction.microbatch, instruction.keep);
      return;
    case Opcode::kRecompute:
      executor_.recompute(unit, instruction.microbatch, instruction.output_unused);
      return;
    case Opcode::kLoss:
      executor_.loss(instruction);
      return;
    case Opcode::kAllocateGrads:
      executor_.allocate_transient_grads(unit);
      return;
    case Opcode::kBackward:
      executor_.backward(instruction);
      return;
    case Opcode::kBackwardInput:
      executor_.backward_input(unit, instruction.microbatch);
      return;
    case Opcode::kBackwardWeight:
      executor_.backward_weight(unit, instruction.microbatch, instruction.accumulate);
      return;
    case Opcode::kSendActivations:
    case Opcode::kRecvActivations:
    case Opcode::kSendGradients:
    case Opcode::kRecvGradients:
      return;  // transfer()
    case Opcode::kWaitSend:
      sends_.wait_host();
      executor_.free_sent(instruction);
      return;
    case Opcode::kAccumulateGrads:
      executor_.accumulate_grads(unit, instruction.accumulate);
      return;
    case Opcode::kReduceGrads:
      reduce(instruction, complete);
      return;
    case Opcode::kWaitReduce:
      wait_all(at_unit(reductions_, unit));
      if (sharding_.shards_grads()) executor_.free_transient_grads(unit);
      return;
    case Opcode::kSumPartialGrads:
      for (const PartialOver over : kAllPartialOver) sum_partial_grads(over);
      return;
    case Opcode::kGradNorm:
      loss_and_norm();
      return;
    case Opcode::kOptimizerStep:
      if (outcome_.updated) executor_.optimizer_step(unit);
      return;
    case Opcode::kGatherParameters:
      gather(instruction, complete, parameter_gathers_);
      return;
  }
}

}  // namespace fivefold
