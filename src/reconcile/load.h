// From a run's folder to a PlannedRun: the record, and the plan that follows from the configuration and the model that
// the record itself holds, so that a run can be reconciled anywhere. Thread-safe: no state.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "reconcile/reconcile.h"

namespace fivefold {

struct LoadPlannedRun {
  std::filesystem::path run_directory;
  std::filesystem::path against;  // a configuration to plan instead of the recorded one; empty: that one
  std::vector<std::string> set;   // KEY=VALUE on top of either
  // Hardware of a configuration, simulated links included; nothing: times are not predicted.
  std::function<Result<HardwareSpec>(const RunConfig& config)> hardware;
  // Model of another configuration.
  std::function<Result<ModelSpec>(const ModelConfig& model)> model;
};

// REQUIRES: `model`, when `against` or `set` is given.
// Errors: those of the record, of a configuration, of the hardware; a model or layout that the planner does not know.
Result<PlannedRun> load_planned_run(const LoadPlannedRun& options);

}  // namespace fivefold
