// The step of a run replayed with the durations that its record has: what the pipeline's schedule makes of the
// computing that the engine really did, as if each rank had cores of its own. A duration is the CPU time of the rank's
// thread, which a machine with fewer cores than ranks does not stretch, as it does wall time. Derivation:
// docs/schedules.md#a-recorded-step-replayed. Pure functions, thread-safe.
#pragma once

#include <optional>
#include <vector>

#include "planner/step_replay.h"
#include "reconcile/reconcile.h"

namespace fivefold {

// The record's instructions are the plan's, on every rank.
bool recorded_as_planned(const PlannedRun& run);

// Per pipeline rank, what it computes in an instruction: the median CPU time over the microbatches and steady steps of
// the last session, and over all ranks of the stage, by opcode and unit. Links and the fixed part of a step take what
// the plan says, nothing without hardware; computing is not slowed by them once more. Nothing where the record has no
// times of a steady step, or another program than the plan.
std::optional<std::vector<StepTimes>> recorded_times(const PlannedRun& run);

// replay_step() with them.
std::optional<StepReplay> replay_recorded(const PlannedRun& run);

}  // namespace fivefold
