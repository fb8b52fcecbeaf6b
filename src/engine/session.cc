#include "engine/session.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels/elementwise.h"

namespace fivefold {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0)
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::max(1, CPU_COUNT(&set));
}

struct RankThread::State {
  LedgerScope ledger;
  c10::InferenceMode inference;
  explicit State(MemoryLedger& memory) : ledger(memory), inference(true) {}
};

RankThread::RankThread(MemoryLedger& ledger, int threads) : state_(std::make_unique<State>(ledger)) {
  at::set_num_threads(threads);
  // Torch may carry an OpenMP runtime of its own; this is the one that fivefold's kernels use.
  omp_set_num_threads(threads);
}
RankThread::~RankThread() = default;

namespace {

ExecutorOptions executor_options(const ResolvedConfig& config, int shard) {
  ExecutorOptions options;
  options.sharding = sharding_policy(config);
  options.shard = shard;
  options.optimizer_states = optimizer_states(config.config.optimizer);
  options.optimizer = config.config.optimizer;
  options.sequence = config.config.batch.sequence;
  options.loss_chunk = config.config.batch.loss_chunk;
  options.max_documents = max_documents(config);
  options.threads = threads_per_rank(config, available_cores());
  return options;
}

Interpreter::Groups make_groups(Communicator& communicator, const RankGrid& grid, const ShardingPolicy& policy) {
  const int rank = communicator.rank();
  const auto create = [&](GroupKind kind, const std::vector<int>& members) {
    // The lowest member tells groups of one kind apart.
    return communicator.create_group(kind, *std::min_element(members.begin(), members.end()), members);
  };
  const std::vector<int> data = grid.group(GroupKind::kDpCp, rank);
  if (policy.zero == 0)
    return {create(GroupKind::kDpCp, data), create(GroupKind::kShard, {rank}), create(GroupKind::kReplicate, data)};
  return {create(GroupKind::kDpCp, data), create(GroupKind::kShard, grid.group(GroupKind::kShard, rank)),
          create(GroupKind::kReplicate, grid.group(GroupKind::kReplicate, rank))};
}

}  // namespace

RankSession::RankSession(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                         Communicator& communicator)
    : config_(config),
      communicator_(communicator),
      grid_(RankGrid::create(config.degrees).value()),
      coordinates_(grid_.coordinates(communicator.rank())),
      groups_(make_groups(communicator, grid_, sharding_policy(config))),
      program_(training_program(inventory, config)),
      evaluation_(evaluation_program(inventory, config)),
      executor_(model, inventory, executor_options(config, groups_.shard.rank())),
      interpreter_(communicator, groups_, sharding_policy(config), executor_) {}

StepOutcome RankSession::step(const std::vector<MicrobatchTokens>& microbatches, double learning_rate, int64_t update,
                              const std::function<bool(double, double)>& accept, bool request_stop) {
  FIVEFOLD_CHECK(static_cast<int64_t>(microbatches.size()) == config_.num_microbatches);
  executor_.load_step(microbatches);
  executor_.set_learning_rate(learning_rate, update);
  return interpreter_.run_step(program_, accept, request_stop);
}

RankSession::Evaluation RankSession::evaluate(const MicrobatchTokens& tokens) {
  executor_.load_step({tokens});
  interpreter_.run_evaluation(evaluation_);
  return {executor_.loss_sum(), executor_.local_valid_tokens()};
}

std::vector<float> RankSession::gather(int unit, State state) {
  interpreter_.finish_parameter_gathers();
  UnitBuffers& buffers = executor_.buffers(unit);
  const AccountScope scope(Account::kOther);
  const at::Tensor shard = state == State::kMaster    ? buffers.master_shard()
                           : state == State::kGrads   ? buffers.grads_shard()
                           : state == State::kMoment1 ? buffers.moment1()
                                                      : buffers.moment2();
  const DType dtype = state == State::kGrads ? executor_.options().sharding.grads : DType::kFloat32;
  const at::Tensor full = allocate(Account::kOther, {shard.numel() * groups_.shard.size()}, dtype);
  communicator_.all_gather(groups_.shard, as_buffer(shard, dtype), as_buffer(full, dtype), Purpose::kControl);
  std::vector<float> values(static_cast<size_t>(full.numel()));
  if (dtype == DType::kFloat32) {
    std::memcpy(values.data(), full.data_ptr(), full.nbytes());
  } else {
    kernels::convert(elements<kernels::BFloat16>(full), values.data(), full.numel(), executor_.options().threads);
  }
  return values;
}

std::vector<MicrobatchTokens> rank_microbatches(const GlobalBatch& batch, const ResolvedConfig& config, int data_rank) {
  const int64_t micro = config.config.batch.micro, replicas = config.config.parallel.dp, s = batch.sequence;
  FIVEFOLD_CHECK(batch.rows == micro * replicas * config.num_microbatches);
  std::vector<MicrobatchTokens> result;
  for (int64_t m = 0; m < config.num_microbatches; ++m) {
    const int64_t first = (m * replicas + data_rank) * micro;
    MicrobatchTokens tokens{
        .rows = micro, .sequence = s, .input_ids = {}, .targets = {}, .positions = {}, .cu_seqlens = {0}};
    const auto copy = [&](const std::vector<int32_t>& from) {
      return std::vector<int32_t>(from.begin() + first * s, from.begin() + (first + micro) * s);
    };
    tokens.input_ids = copy(batch.input_ids);
    tokens.targets = copy(batch.targets);
    tokens.positions = copy(batch.positions);
    for (int64_t row = first; row < first + micro; ++row)
      for (const int32_t length : batch.document_lengths[static_cast<size_t>(row)])
        tokens.cu_seqlens.push_back(tokens.cu_seqlens.back() + length);
    result.push_back(std::move(tokens));
  }
  return result;
}

}  // namespace fivefold
