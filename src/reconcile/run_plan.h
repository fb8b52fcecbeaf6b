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
#include "record/run_record.h"
#include "spec/hardware.h"

namespace fivefold {

struct PlannedTime {
  std::string hardware;     // name of the file, and of the cluster whose links are imitated
  bool calibrated = false;  // its rates were measured, not published or assumed
  double step_s = 0;        // in steady state
  PartSeconds parts;        // their sum is step_s
  StepTimes times;          // of the instructions, on any rank
  StepReplay replay;        // of one step of all pipeline ranks
  std::vector<std::vector<CommunicationTime>> communication;  // of a step in steady state, by pipeline rank
  double peak_flops_per_s = 0;                                // of all ranks; 0: unknown
};

// What differs from rank to rank where the model is split.
struct RankPlan {
  Program program;
  Ledger ledger;
  std::vector<TrafficLine> traffic;
  PartSeconds parts;  // with hardware
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
  std::optional<PlannedTime> time;   // nothing without hardware; parts of rank 0

  const RankPlan* other(int rank) const {
    return rank == 0 || others.empty() ? nullptr : &others[static_cast<size_t>(rank) - 1];
  }
  const Program& program_of(int rank) const { return other(rank) ? other(rank)->program : program; }
  const Ledger& ledger_of(int rank) const { return other(rank) ? other(rank)->ledger : ledger; }
  // Of the rank that needs most.
  const Ledger& fullest_ledger() const;
  const std::vector<TrafficLine>& traffic_of(int rank) const { return other(rank) ? other(rank)->traffic : traffic; }
  // REQUIRES: hardware is known.
  const PartSeconds& parts_of(int rank) const { return other(rank) ? other(rank)->parts : time->parts; }
  // Its instructions and, apart, its collectives. REQUIRES: hardware is known.
  const std::vector<TimelineEntry>& timeline_of(int rank) const {
    return time->replay.timelines[static_cast<size_t>(pipeline_rank(rank))];
  }
  const std::vector<CommunicationTime>& communication_of(int rank) const {
    return time->communication[static_cast<size_t>(pipeline_rank(rank))];
  }
  int pipeline_rank(int rank) const;
  // The Programs of the pipeline that rank 0 is in, by pipeline rank.
  std::vector<Program> pipeline_programs() const;
};

// An instruction as a record names it.
RecordedInstruction as_recorded(const Instruction& instruction, const Inventory& inventory);

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
