// FrameworkPrediction: all that is predicted of a run in another framework from its configuration, to be held against
// its log. Plain data, pure functions, thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "planner/profiles/framework_time.h"
#include "record/foreign_log.h"
#include "spec/run_config.h"

namespace fivefold {

struct FrameworkPrediction {
  ModelSpec model;   // without an adapter
  RunConfig config;  // batch.global filled in
  HardwareSpec hardware;
  FrameworkRun run;
  ProfileMemory memory;  // of the largest rank
  int64_t need = 0;      // of the card, to fit
  std::optional<FrameworkTime> time;
  std::string no_time;             // why there is none
  std::vector<std::string> notes;  // on the configuration: what was taken for granted

  int64_t world() const { return run.dp * run.tp * run.cp * run.pp; }
  bool fits() const { return need <= run.capacity_bytes; }
  double tokens_per_step() const {
    return static_cast<double>(run.micro * run.dp * run.microbatches) * static_cast<double>(run.sequence);
  }
  double step_seconds() const { return time ? time->seconds : 0; }
};

// Errors: those of framework_run(). REQUIRES: config.framework.name is not kFivefold.
Result<FrameworkPrediction> predict_framework(const ModelSpec& model, const RunConfig& config,
                                              const HardwareSpec& hardware);

// What a figure of this kind should be, on the rank that `reported` means.
int64_t predicted_figure(FrameworkRun run, LoggedMemoryKind kind, ReportedRank reported);

// The pipeline stage of a rank: tp is fastest, then cp, dp, pp.
int64_t stage_of_rank(const FrameworkPrediction& prediction, int64_t rank);

}  // namespace fivefold
