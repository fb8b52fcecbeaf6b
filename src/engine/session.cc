#include "engine/session.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
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

ExecutorOptions executor_options(const ResolvedConfig& config, const RankPart& part, int shard) {
  ExecutorOptions options;
  options.split = part.split;
  options.stages = part.stages;
  options.context = part.context;
  options.dropped = part.dropped;
  options.sharding = sharding_policy(config);
  options.shard = shard;
  options.optimizer_states = optimizer_states(config.config.optimizer);
  options.optimizer = config.config.optimizer;
  options.seed = static_cast<uint64_t>(config.config.run.seed);
  options.sequence = config.padded_sequence;
  options.loss_chunk = config.config.batch.loss_chunk;
  options.max_documents = max_documents(config);
  options.threads = threads_per_rank(config, available_cores());
  options.fp8 = tape_shape(config).fp8;
  options.fp8_history = config.config.precision.fp8_history;
  return options;
}

Interpreter::Groups make_groups(Communicator& communicator, const RankGrid& grid, const ShardingPolicy& policy,
                                const RankStages& stages) {
  const int rank = communicator.rank();
  const auto create = [&](GroupKind kind, const std::vector<int>& members) {
    // The lowest member tells groups of one kind apart.
    return communicator.create_group(kind, *std::min_element(members.begin(), members.end()), members);
  };
  const auto of_grid = [&](GroupKind kind) { return create(kind, grid.group(kind, rank)); };
  // ZeRO level 0 is one shard, on this rank alone, and its replicas are all data-parallel ranks.
  const bool shards = policy.zero > 0;
  Interpreter::Groups groups{
      .world = communicator.world(),
      .data = of_grid(GroupKind::kDpCp),
      .shard = shards ? of_grid(GroupKind::kShard) : create(GroupKind::kShard, {rank}),
      .replicate = create(GroupKind::kReplicate, grid.group(shards ? GroupKind::kReplicate : GroupKind::kDpCp, rank))};
  if (grid.degrees().tp > 1) groups.tensor = of_grid(GroupKind::kTp);
  if (grid.degrees().kv_holders > 1) groups.kv_holders = of_grid(GroupKind::kKvHead);
  if (grid.degrees().pp > 1) groups.pipeline = of_grid(GroupKind::kPp);
  if (stages.shares_embedding()) groups.tied_ends = of_grid(GroupKind::kEmbedding);
  // The ranks of a tensor group and of a pipeline see the same samples: of those that compute the loss the first
  // counts.
  groups.counts_samples = grid.coordinates(rank).tp == 0 && stages.computes_head();
  return groups;
}

}  // namespace

RankSession::RankSession(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                         Communicator& communicator)
    : whole_model_(model),
      whole_inventory_(inventory),
      config_(config),
      communicator_(communicator),
      grid_(RankGrid::create(config.degrees).value()),
      coordinates_(grid_.coordinates(communicator.rank())),
      part_(rank_part(model, config, communicator.rank())),
      groups_(make_groups(communicator, grid_, sharding_policy(config), part_.stages)),
      tensor_(groups_.tensor ? std::optional<TensorParallel>(std::in_place, communicator, *groups_.tensor, part_.split)
                             : std::nullopt),
      context_(grid_.degrees().cp > 1
                   ? std::optional<ContextParallel>(
                         std::in_place, communicator,
                         communicator.create_group(GroupKind::kCp, grid_.group(GroupKind::kCp, communicator.rank())[0],
                                                   grid_.group(GroupKind::kCp, communicator.rank())),
                         config.config.parallel.cp_kind)
                   : std::nullopt),
      program_(training_program(part_.inventory, config, part_.stages, communicator.rank())),
      evaluation_(evaluation_program(part_.inventory, config, part_.stages, communicator.rank())),
      executor_(part_.model, part_.inventory, executor_options(config, part_, groups_.shard.rank()),
                tensor_ ? &*tensor_ : nullptr, context_ ? &*context_ : nullptr),
      interpreter_(communicator, groups_, sharding_policy(config), executor_),
      scaler_(config.compute == DType::kFloat16
                  ? std::optional<LossScaler>(std::in_place, static_cast<float>(config.config.precision.loss_scale),
                                              config.config.precision.loss_scale_growth_every)
                  : std::nullopt) {}

void RankSession::start_adapter(uint64_t seed) {
  executor_.initialize_weights(seed, TrainingExecutor::Draw::kAdapters);
  start_magnitudes();
}

// DoRA: unit by unit, each gathered for it where it is in shards.
void RankSession::start_magnitudes() {
  const bool gathers = sharding_policy(config_).shards_params();
  for (int unit = 0; unit < whole_inventory_.num_units(); ++unit) {
    if (!executor_.has_magnitudes(unit)) continue;
    if (gathers) {
      executor_.allocate_unsharded(unit);
      communicator_.all_gather(groups_.shard, executor_.unsharded_params(unit), Purpose::kParameters, {});
    }
    executor_.start_magnitudes(unit);
    if (gathers) executor_.free_unsharded(unit);
  }
}

StepOutcome RankSession::step(const std::vector<MicrobatchTokens>& microbatches, double learning_rate, int64_t update,
                              const std::function<bool(double, double)>& accept, bool request_stop) {
  FIVEFOLD_CHECK(static_cast<int64_t>(microbatches.size()) == config_.num_microbatches);
  load(microbatches);
  executor_.set_learning_rate(learning_rate, update);
  const StepOutcome outcome =
      scaler_ ? run_scaled_step(accept, request_stop) : interpreter_.run_step(program_, accept, request_stop);
  if (Fp8History* history = executor_.fp8_history(); history != nullptr) {
    const std::span<float> current = history->current();
    communicator_.all_reduce(communicator_.world(),
                             {current.data(), static_cast<int64_t>(current.size_bytes()), DType::kFloat32, {}},
                             Reduction::kMax, Purpose::kScales);
    history->end_step();
  }
  return outcome;
}

// fp16: the loss's gradient is multiplied by the scale, which an overflow anywhere halves.
StepOutcome RankSession::run_scaled_step(const std::function<bool(double, double)>& accept, bool request_stop) {
  executor_.set_loss_scale(scaler_->scale());
  bool finite = true;
  StepOutcome outcome = interpreter_.run_step(
      program_,
      [&](double loss, double norm) {
        finite = std::isfinite(loss) && std::isfinite(norm);
        return finite && (!accept || accept(loss, norm));
      },
      request_stop);
  outcome.loss_scale = executor_.loss_scale();
  if (outcome.valid_tokens > 0) scaler_->update(!finite);
  return outcome;
}

void RankSession::load(const std::vector<MicrobatchTokens>& microbatches) {
  std::vector<MicrobatchTokens> parts;
  std::vector<ContextSegments> segments;
  for (const MicrobatchTokens& tokens : microbatches) {
    const MicrobatchTokens padded = pad_rows(tokens, config_.padded_sequence);
    parts.push_back(split_rows(padded, config_.degrees.cp, coordinates_.cp));
    if (context_) segments.push_back(context_segments(padded, config_.degrees.cp, coordinates_.cp));
  }
  executor_.load_step(parts, std::move(segments));
}

RankSession::Evaluation RankSession::evaluate(const MicrobatchTokens& tokens) {
  load({tokens});
  interpreter_.run_evaluation(evaluation_);
  if (executor_.fp8_history() != nullptr) executor_.fp8_history()->forget_current();
  if (!groups_.counts_samples) return {};
  return {executor_.loss_sum(), executor_.local_valid_tokens()};
}

// This rank's part in full: what its shard group holds of it.
std::vector<float> RankSession::gather_shards(int unit, State state) {
  UnitBuffers& buffers = executor_.buffers(unit);
  const AccountScope scope(Account::kOther);
  if (state == State::kMoment1 || state == State::kMoment2) {
    std::vector<float> own = (state == State::kMoment1 ? buffers.moment1() : buffers.moment2()).values();
    std::vector<float> all(own.size() * static_cast<size_t>(groups_.shard.size()));
    const auto bytes = static_cast<int64_t>(own.size() * sizeof(float));
    communicator_.all_gather(groups_.shard, {own.data(), bytes, DType::kFloat32, {}},
                             {all.data(), bytes * groups_.shard.size(), DType::kFloat32, {}}, Purpose::kControl);
    return all;
  }
  const at::Tensor master = buffers.master_shard();
  const at::Tensor shard = state == State::kGrads ? buffers.grads_shard()
                           : master.defined()     ? master
                                                  : buffers.params_shard();
  const DType dtype = dtype_of(shard);
  const at::Tensor full = allocate(Account::kOther, {shard.numel() * groups_.shard.size()}, dtype);
  communicator_.all_gather(groups_.shard, as_buffer(shard, dtype), as_buffer(full, dtype), Purpose::kControl);
  std::vector<float> values(static_cast<size_t>(full.numel()));
  if (dtype == DType::kFloat32) {
    std::memcpy(values.data(), full.data_ptr(), full.nbytes());
  } else {
    visit_half(full, [&]<class T>(std::type_identity<T>) {
      kernels::convert(elements<T>(full), values.data(), full.numel(), executor_.options().threads);
    });
  }
  if (state == State::kGrads && scaler_)
    kernels::scale(values.data(), full.numel(), 1 / executor_.loss_scale(), executor_.options().threads);
  return values;
}

// What the ranks of this stage hold of a unit, put together.
std::vector<float> RankSession::gather_stage(int unit, State state) {
  std::vector<float> own = gather_shards(unit, state);
  if (!tensor_) return own;
  const int ranks = part_.split.size;
  std::vector<float> all(own.size() * static_cast<size_t>(ranks));
  const auto bytes = static_cast<int64_t>(own.size() * sizeof(float));
  communicator_.all_gather(*groups_.tensor, {own.data(), bytes, DType::kFloat32, {}},
                           {all.data(), bytes * ranks, DType::kFloat32, {}}, Purpose::kControl);
  const Unit& whole = whole_inventory_.units[static_cast<size_t>(unit)];
  std::vector<float> values(static_cast<size_t>(whole.padded_numel(groups_.shard.size())));
  for (int rank = 0; rank < ranks; ++rank) {
    TensorSplit split = part_.split;
    split.rank = rank;
    const Unit held = split_unit(whole_model_, whole_inventory_, unit, split);
    const float* from = all.data() + own.size() * static_cast<size_t>(rank);
    for (size_t p = 0; p < held.parameters.size(); ++p) {
      const ParameterEntry& entry = held.parameters[p];
      if (!entry.trained()) continue;
      for (const ElementRun& run : element_runs(entry, 0, entry.numel()))
        std::copy_n(from + entry.offset + run.local, run.count,
                    values.begin() + static_cast<std::ptrdiff_t>(whole.parameters[p].offset + run.whole));
    }
  }
  return values;
}

std::vector<float> RankSession::gather(int unit, State state) {
  interpreter_.finish_parameter_gathers();
  if (!groups_.pipeline) return gather_stage(unit, state);
  // The stage that computes the unit tells the others.
  const bool own = part_.stages.computes(unit);
  std::vector<float> values(
      static_cast<size_t>(whole_inventory_.units[static_cast<size_t>(unit)].padded_numel(groups_.shard.size())));
  if (own) values = gather_stage(unit, state);
  int stage = 0;
  for (const int member : groups_.pipeline->members()) {
    if (rank_stages(whole_model_, config_, member).computes(unit)) break;
    ++stage;
  }
  communicator_.broadcast(*groups_.pipeline,
                          {values.data(), static_cast<int64_t>(values.size() * sizeof(float)), DType::kFloat32, {}},
                          stage, Purpose::kControl);
  return values;
}

std::vector<MicrobatchTokens> rank_microbatches(const GlobalBatch& batch, const ResolvedConfig& config, int data_rank) {
  const int64_t micro = config.config.batch.micro, replicas = config.config.parallel.dp, s = batch.sequence;
  FIVEFOLD_CHECK(batch.rows == micro * replicas * config.num_microbatches);
  std::vector<MicrobatchTokens> result;
  for (int64_t m = 0; m < config.num_microbatches; ++m) {
    const int64_t first = (m * replicas + data_rank) * micro;
    MicrobatchTokens tokens{.rows = micro,
                            .sequence = s,
                            .input_ids = {},
                            .targets = {},
                            .positions = {},
                            .cu_seqlens = {0},
                            .numbers = {}};
    const auto copy = [&](const std::vector<int32_t>& from) {
      return std::vector<int32_t>(from.begin() + first * s, from.begin() + (first + micro) * s);
    };
    tokens.input_ids = copy(batch.input_ids);
    tokens.targets = copy(batch.targets);
    tokens.positions = copy(batch.positions);
    for (int64_t row = first; row < first + micro; ++row)
      for (const int32_t length : batch.document_lengths[static_cast<size_t>(row)])
        tokens.cu_seqlens.push_back(tokens.cu_seqlens.back() + length);
    if (config.config.method.dropout > 0) number_tokens(first, tokens);
    result.push_back(std::move(tokens));
  }
  return result;
}

}  // namespace fivefold
