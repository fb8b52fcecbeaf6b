// StepReplay: one optimizer step of all ranks of a pipeline: their Programs run through together, each with its own
// duration per instruction, collectives on a timeline of their own. Where the durations come from does not matter here:
// predicted or recorded (planner/step_times.h). Derivation: docs/communication.md#time. Pure functions, thread-safe.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "planner/communication_times.h"
#include "planner/step_times.h"
#include "schedule/program.h"

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
  double busy_s() const;  // computing, slowed down or not, and the overhead of a step
};

// When an instruction runs; a collective when its bytes move, apart from the instruction that waits for it.
struct TimelineEntry {
  Instruction instruction;
  double begin_s = 0, end_s = 0;
  bool communication = false;
};

struct StepReplay {
  std::vector<StepCost> ranks;                        // per pipeline rank, until its own end
  std::vector<std::vector<TimelineEntry>> timelines;  // per pipeline rank
  double makespan_s = 0;                              // until the last rank's end

  // Shares of the makespan in which a rank waits for another's computation or is through, and in which it waits for a
  // link. The rest is computing: bubble = 1 - (busy + exposed) / makespan.
  double bubble(int rank) const;
  double exposed_communication(int rank) const;
  double bubble() const;  // mean over ranks: where links cost nothing 1 - sum of busy / (p x makespan)
};

// One step from a standstill. `times` are per rank, or the same for all. REQUIRES: the Programs are those of all ranks
// of one pipeline, in order; times of as many pipeline ranks.
StepReplay replay_step(const std::vector<Program>& programs, const std::vector<StepTimes>& times);
StepReplay replay_step(const std::vector<Program>& programs, const StepTimes& times);

// The second of two steps: what each rank spends in steady state.
std::vector<StepCost> replay_steady_step(const std::vector<Program>& programs, const StepTimes& times);
// Of the same step on each rank: its collectives by group and purpose, and how much of them is hidden.
std::vector<std::vector<CommunicationTime>> replay_steady_communication(const std::vector<Program>& programs,
                                                                        const StepTimes& times);

}  // namespace fivefold
