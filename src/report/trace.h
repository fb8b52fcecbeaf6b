// A timeline for Perfetto or chrome://tracing (Trace Event Format, JSON): the measured instructions of each rank beside
// the planned ones. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"
#include "reconcile/reconcile.h"

namespace fivefold {

struct TraceOptions {
  int64_t num_steps = 3;  // steps of the last session, from its first steady one; those with times
};

// Processes "measured" and "planned", in each two tracks a rank: its instructions and its collectives (measured ones
// where the record has them). Planned steps begin when rank 0 began the measured ones. Microseconds from the first
// event.
std::string trace_json(const PlannedRun& run, const TraceOptions& options = {});

// The planned step alone, of every pipeline rank, in tracks named as above.
std::string planned_trace_json(const StepReplay& replay, const Inventory& inventory);

// Errors: cannot be written.
Status write_planned_trace(const StepReplay& replay, const Inventory& inventory, const std::filesystem::path& file);
// RUN_DIRECTORY/trace.json. Errors: cannot be written.
Status write_trace(const PlannedRun& run, const std::filesystem::path& run_directory, const TraceOptions& options = {});

}  // namespace fivefold
