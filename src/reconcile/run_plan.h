// RunPlan: everything that is predicted of a training run, in the words of its record. Made once; `train` writes it to
// plan.json, `reconcile` joins it with the record. Plain data and pure functions, thread-safe.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "planner/cost.h"
#include "planner/ledger.h"
#include "planner/traffic.h"
#include "planner/work.h"
#include "reconcile/step_part.h"
#include "spec/hardware.h"

namespace fivefold {

struct PlannedTime {
  std::string hardware;                 // name of the file, and of the cluster whose links are imitated
  bool calibrated = false;              // its rates were measured, not published or assumed
  double step_s = 0;                    // in steady state
  PartSeconds parts;                    // their sum is step_s
  std::vector<TimelineEntry> timeline;  // of one step: the rank's instructions and, apart, its collectives
  double peak_flops_per_s = 0;          // of all ranks; 0: unknown
};

struct RunPlan {
  ModelSpec model;
  Inventory inventory;
  ResolvedConfig config;
  int threads = 1;                   // of a rank
  Program program;                   // of a step, alike on every rank
  Ledger ledger;                     // of a rank
  int64_t library_bytes = 0;         // of a process, beside what its ranks count; 0: not measured
  std::vector<TrafficLine> traffic;  // of a rank and step
  StepFlops flops;                   // of a step, all ranks
  std::optional<PlannedTime> time;   // nothing without hardware
};

// Errors: what the planner cannot predict yet.
Result<RunPlan> make_run_plan(const ModelSpec& model, const ResolvedConfig& config, int threads,
                              const HardwareSpec* hardware);

// {"model", "ranks", "threads", "memory": {"accounts", "at_peak", "peak", "libraries", "peak_moment"}, "traffic":
// [...], "flops",
//  "time": {...} or null}; docs/formats/run-record.md.
nlohmann::ordered_json plan_json(const RunPlan& plan);
// RUN_DIRECTORY/plan.json, replaced whole. Errors: cannot be written.
Status write_plan_json(const RunPlan& plan, const std::filesystem::path& run_directory);

}  // namespace fivefold
