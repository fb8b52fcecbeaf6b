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
  std::vector<CommunicationTime> communication;
  double peak_flops_per_s = 0;  // of all ranks; 0: unknown
};

// What differs from rank to rank where the model is split.
struct RankPlan {
  Program program;
  Ledger ledger;
  std::vector<TrafficLine> traffic;
  PartSeconds parts;                             // with hardware
  std::vector<TimelineEntry> timeline;           // with hardware
  std::vector<CommunicationTime> communication;  // with hardware
};

struct RunPlan {
  ModelSpec model;
  Inventory inventory;
  ResolvedConfig config;
  int threads = 1;                   // of a rank
  Program program;                   // of a step on rank 0
  Ledger ledger;                     // of rank 0
  int64_t library_bytes = 0;         // of a process, beside what its ranks count; 0: not measured
  std::vector<TrafficLine> traffic;  // of a step on rank 0
  std::vector<RankPlan> others;      // of ranks 1, 2, ...; none: all ranks are as rank 0
  StepFlops flops;                   // of a step, all ranks
  std::optional<PlannedTime> time;   // nothing without hardware; parts, timeline and communication of rank 0

  const RankPlan* other(int rank) const {
    return rank == 0 || others.empty() ? nullptr : &others[static_cast<size_t>(rank) - 1];
  }
  const Program& program_of(int rank) const { return other(rank) ? other(rank)->program : program; }
  const Ledger& ledger_of(int rank) const { return other(rank) ? other(rank)->ledger : ledger; }
  const std::vector<TrafficLine>& traffic_of(int rank) const { return other(rank) ? other(rank)->traffic : traffic; }
  // REQUIRES: hardware is known.
  const PartSeconds& parts_of(int rank) const { return other(rank) ? other(rank)->parts : time->parts; }
  const std::vector<TimelineEntry>& timeline_of(int rank) const {
    return other(rank) ? other(rank)->timeline : time->timeline;
  }
  const std::vector<CommunicationTime>& communication_of(int rank) const {
    return other(rank) ? other(rank)->communication : time->communication;
  }
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
