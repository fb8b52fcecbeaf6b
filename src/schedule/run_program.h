// From a resolved configuration to the Program of its ranks: the one place where settings become a sharding policy and
// lowering options, for planner and engine alike. Pure functions, thread-safe.
#pragma once

#include "schedule/program.h"
#include "spec/rank_part.h"
#include "spec/run_config_resolve.h"

namespace fivefold {

// ZeRO level 0 is one shard, replicated over dp x cp.
ShardingPolicy sharding_policy(const ResolvedConfig& config);
// Without the pipeline: what holds for all ranks.
LoweringOptions lowering_options(const ResolvedConfig& config);
// Of one rank of the grid.
LoweringOptions lowering_options(const ResolvedConfig& config, const RankStages& stages, int rank);
// The pipeline's schedule, with its transfers; without a pipeline microbatch after microbatch.
Schedule pipeline_schedule(const ResolvedConfig& config);
OptimizerStates optimizer_states(const OptimizerConfig& config);
// Documents that a microbatch can hold: one a row, or, packed by documents, one a token.
int64_t max_documents(const ResolvedConfig& config);
// CPU threads of a rank: as configured, or `cores` / ranks, at least 1.
int threads_per_rank(const ResolvedConfig& config, int cores);
TapeShape tape_shape(const ResolvedConfig& config);

Program training_program(const Inventory& inventory, const ResolvedConfig& config, const RankStages& stages, int rank);
Program evaluation_program(const Inventory& inventory, const ResolvedConfig& config, const RankStages& stages,
                           int rank);

}  // namespace fivefold
