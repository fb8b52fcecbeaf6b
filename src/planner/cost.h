// Cost: predicted time of a step on one rank: the step's Program replayed (planner/step_replay.h) with predicted
// durations (planner/step_times.h). Derivation: docs/communication.md#time. Pure functions, thread-safe.
//
// Note [Inputs of the cost]
//   All of them are fields of HardwareSpec, and calibrate measures each with the kernels that the engine runs:
//   device.gemm          flops/s of matrix products by shape, dtype, threads and ranks at work
//   device.operations    per operation and pass: fixed seconds, bytes/s, for attention also flops/s (planner/work.h)
//   device.streams       bytes/s of the optimizer, of gradient accumulation and of the norm's sum of squares
//   device.launch_latency_s, step_overhead_s   per matrix product; per step
//   device.overlap_share how much a collective slows what computes meanwhile
//   node.link.collectives, network.collectives seconds by kind, ranks and bytes
#pragma once

#include "planner/prediction_memo.h"
#include "planner/rates.h"
#include "planner/step_replay.h"

namespace fivefold {

// Threads of a rank and ranks a machine, of a configuration on this hardware.
RankPlacement rank_placement(const ResolvedConfig& config, const HardwareSpec& hardware);

// Of the pipeline rank with the least bubble. REQUIRES: planner_scope() finds nothing.
StepCost predict_cost(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                      const HardwareSpec& hardware);
// The same, for many configurations: what they share is computed once. REQUIRES: as PredictionMemo does.
StepCost predict_cost(PredictionMemo& memo, const ResolvedConfig& config);
// The same from its programs. REQUIRES: `programs` are pipeline_programs() of replayed_microbatches().
StepCost predict_cost(PredictionMemo& memo, const ResolvedConfig& config, const std::vector<Program>& programs);

// How many microbatches are replayed (Note [Periods of a step]).
int64_t replayed_microbatches(const ResolvedConfig& config);
// Of each pipeline rank, with a number of microbatches of its own; of rank `rank` of the grid.
std::vector<Program> pipeline_programs(PredictionMemo& memo, const ResolvedConfig& config, int64_t num_microbatches);
Program pipeline_program(PredictionMemo& memo, ResolvedConfig config, int rank, int64_t num_microbatches);

// Of the same step on each pipeline rank: its collectives by group and purpose, and how much of them is hidden.
std::vector<std::vector<CommunicationTime>> predict_communication(const ModelSpec& model, const Inventory& inventory,
                                                                  const ResolvedConfig& config,
                                                                  const HardwareSpec& hardware);

// One step from a standstill, of all pipeline ranks: for pictures, and the bubble of each rank. REQUIRES: as above.
StepReplay predict_step(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                        const HardwareSpec& hardware);

// Peak rate of all that the configuration uses: devices of a GPU run, the cores of a CPU run.
double peak_flops_per_s(const ResolvedConfig& config, const HardwareSpec& hardware);

}  // namespace fivefold
