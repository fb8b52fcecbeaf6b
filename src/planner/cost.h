// Cost: predicted time of a step on one rank: the step's Program replayed with a duration per instruction, collectives
// on a timeline of their own. Derivation: docs/communication.md#time. Pure functions, thread-safe.
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

#include <array>
#include <vector>

#include "planner/communication_times.h"
#include "planner/rates.h"
#include "schedule/run_program.h"

namespace fivefold {

enum class TimePart : uint8_t {
  kForward,
  kRecompute,
  kBackward,
  kHead,       // final norm, logits, loss and their backward
  kGradients,  // accumulation and clipping norm
  kOptimizer,
  kExposedCommunication,  // waiting for a collective
  kOverlapSlowdown,       // computing while a collective runs
  kBubble,                // pipeline: waiting for another stage's computation
  kOverhead,              // fixed part of a step
};
inline constexpr int kNumTimeParts = 10;
std::string_view to_string(TimePart part);

struct StepCost {
  double seconds = 0;                         // of a step in steady state
  std::array<double, kNumTimeParts> parts{};  // their sum is `seconds`
  double communication_seconds = 0;           // of all collectives, hidden or not

  double operator[](TimePart part) const { return parts[static_cast<size_t>(part)]; }
};

// Threads of a rank and ranks a machine, of a configuration on this hardware.
RankPlacement rank_placement(const ResolvedConfig& config, const HardwareSpec& hardware);

// Of the pipeline rank with the least bubble. REQUIRES: planner_scope() finds nothing.
StepCost predict_cost(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                      const HardwareSpec& hardware);

// Of the same step on one pipeline rank: its collectives by group and purpose, and how much of them is hidden.
std::vector<CommunicationTime> predict_communication(const ModelSpec& model, const Inventory& inventory,
                                                     const ResolvedConfig& config, const HardwareSpec& hardware,
                                                     int pipeline_rank = 0);

// Start and end of each instruction of a pipeline rank's Program on its timeline, for pictures.
struct TimelineEntry {
  Instruction instruction;
  double begin_s = 0, end_s = 0;
  bool communication = false;
};
std::vector<TimelineEntry> step_timeline(const ModelSpec& model, const Inventory& inventory,
                                         const ResolvedConfig& config, const HardwareSpec& hardware,
                                         int pipeline_rank = 0);

// Peak rate of all that the configuration uses: devices of a GPU run, the cores of a CPU run.
double peak_flops_per_s(const ResolvedConfig& config, const HardwareSpec& hardware);

}  // namespace fivefold
