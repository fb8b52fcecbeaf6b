#include "schedule/run_program.h"

#include <algorithm>

#include "base/integer.h"
#include "schedule/generate.h"
#include "schedule/schedule_file.h"
#include "spec/rank_grid.h"
#include "spec/rank_part.h"

namespace fivefold {

ShardingPolicy sharding_policy(const ResolvedConfig& config) {
  const ParallelConfig& parallel = config.config.parallel;
  const int ranks = parallel.dp * parallel.cp;
  ShardingPolicy policy;
  policy.zero = parallel.zero;
  policy.shards = parallel.zero == 0 ? 1 : parallel.shard_size;
  policy.replicas = static_cast<int>(div_exact(ranks, policy.shards));
  policy.reduces_once = parallel.reduce == ReduceWhen::kStep;
  policy.compute = config.compute;
  policy.grads = config.grads;
  policy.double_quantization = config.config.method.double_quantization;
  policy.moments = config.config.precision.optimizer_state;
  policy.master = config.config.precision.master;
  return policy;
}

LoweringOptions lowering_options(const ResolvedConfig& config) {
  LoweringOptions options;
  options.sharding = sharding_policy(config);
  options.prefetch = config.config.parallel.prefetch;
  options.bucket_layers = config.config.parallel.bucket_layers;
  options.sums_partial_grads = config.degrees.tp > 1;
  if (config.config.recompute.kind == RecomputeKind::kFull)
    options.recompute_every = static_cast<int>(config.config.recompute.every);
  return options;
}

OptimizerStates optimizer_states(const OptimizerConfig& config) {
  if (config.kind == OptimizerKind::kAdamW) return OptimizerStates::kMoment1And2;
  return config.momentum != 0 ? OptimizerStates::kMoment1 : OptimizerStates::kNone;
}

int64_t max_documents(const ResolvedConfig& config) {
  const BatchConfig& batch = config.config.batch;
  // Tokens of padding are a document of their own at the end of each row.
  const int64_t padding = config.padded_sequence > batch.sequence ? batch.micro : 0;
  return padding + (batch.packing == Packing::kDocuments ? batch.micro * batch.sequence : batch.micro);
}

int threads_per_rank(const ResolvedConfig& config, int cores) {
  if (config.config.parallel.threads > 0) return config.config.parallel.threads;
  return std::max(1, cores / config.degrees.world());
}

TapeShape tape_shape(const ResolvedConfig& config) {
  const BatchConfig& batch = config.config.batch;
  return {.tokens = batch.micro * div_exact(config.padded_sequence, config.degrees.cp),
          .split = tensor_split(config, 0),
          .context = context_split(config),
          .loss_chunk = batch.loss_chunk,
          .compute = config.compute,
          .fp8 = config.config.precision.compute == ComputeKind::kFp8 ? std::optional(config.config.precision.fp8)
                                                                      : std::nullopt};
}

LoweringOptions lowering_options(const ResolvedConfig& config, const RankStages& stages, int rank) {
  LoweringOptions options = lowering_options(config);
  const ParallelConfig& parallel = config.config.parallel;
  options.pipeline_rank = RankGrid::create(config.degrees).value().coordinates(rank).pp;
  options.chunks = stages.chunks;
  const Schedule shape{.num_stages = parallel.pp,
                       .chunks_per_rank = parallel.vpp,
                       .num_microbatches = 1,
                       .ranks = {},
                       .placement = placement_of(parallel)};
  for (int chunk = 0; chunk < parallel.vpp; ++chunk)
    options.peers.push_back({peer_of(shape, options.pipeline_rank, ScheduleOp::kRecvForward, chunk),
                             peer_of(shape, options.pipeline_rank, ScheduleOp::kSendForward, chunk)});
  options.receives_at_use = !config.config.comm.rendezvous;
  options.sums_partial_grads = config.degrees.tp > 1 || stages.shares_embedding();
  return options;
}

Schedule pipeline_schedule(const ResolvedConfig& config) {
  const ParallelConfig& parallel = config.config.parallel;
  const int microbatches = static_cast<int>(config.num_microbatches);
  if (parallel.pp == 1) return sequential_schedule(microbatches);
  if (parallel.schedule == ScheduleKind::kFile)
    return read_schedule_text(parallel.schedule_source.text, parallel.schedule_file).value();
  return generate(parallel.schedule, parallel.pp, parallel.vpp, microbatches).value();
}

Program training_program(const Inventory& inventory, const ResolvedConfig& config, const RankStages& stages, int rank) {
  return lower(pipeline_schedule(config), inventory, lowering_options(config, stages, rank));
}

Program evaluation_program(const Inventory& inventory, const ResolvedConfig& config, const RankStages& stages,
                           int rank) {
  return lower_evaluation(inventory, lowering_options(config, stages, rank));
}

}  // namespace fivefold
