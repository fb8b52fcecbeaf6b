#include "schedule/run_program.h"

#include <algorithm>

#include "base/integer.h"
#include "spec/rank_part.h"

namespace fivefold {

ShardingPolicy sharding_policy(const ResolvedConfig& config) {
  const ParallelConfig& parallel = config.config.parallel;
  const int ranks = parallel.dp * parallel.cp;
  ShardingPolicy policy;
  policy.zero = parallel.zero;
  policy.shards = parallel.zero == 0 ? 1 : parallel.shard_size;
  policy.replicas = static_cast<int>(div_exact(ranks, policy.shards));
  policy.compute = config.compute;
  policy.grads = config.grads;
  return policy;
}

LoweringOptions lowering_options(const ResolvedConfig& config) {
  LoweringOptions options;
  options.sharding = sharding_policy(config);
  options.prefetch = config.config.parallel.prefetch;
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
  return {.tokens = batch.micro * config.padded_sequence,
          .split = tensor_split(config, 0),
          .loss_chunk = batch.loss_chunk,
          .compute = config.compute};
}

Program training_program(const Inventory& inventory, const ResolvedConfig& config) {
  return lower(sequential_schedule(static_cast<int>(config.num_microbatches)), inventory, lowering_options(config));
}

Program evaluation_program(const Inventory& inventory, const ResolvedConfig& config) {
  return lower_evaluation(inventory, lowering_options(config));
}

}  // namespace fivefold
