// A configuration whose [framework] is not fivefold's engine, as the run of that framework: which layouts it has, and
// what its switches are set to. Pure functions, thread-safe.
#pragma once

#include <vector>

#include "planner/profiles/framework_run.h"
#include "spec/hardware.h"

namespace fivefold {

// `model`: without an adapter: [method] says whether there is one. Errors: what framework_refusals() finds, a switch
// that the framework does not have, a batch that the replicas do not divide, settings that it cannot be told.
// REQUIRES: config.framework.name is not kFivefold.
Result<FrameworkRun> framework_run(const ModelSpec& model, const RunConfig& config, const HardwareSpec& hardware);

// The configuration that framework_run() reads as `run`: the rest is that of `base`.
RunConfig framework_run_config(const FrameworkRun& run, const RunConfig& base);

// Layouts that the framework does not have for this model, each with the nearest that it has.
std::vector<Error> framework_refusals(const FrameworkRun& run);

// Linears of a layer by the last parts of their Hub names: what "all-linear" means.
std::vector<std::string> all_linear_targets(const ModelSpec& model);

}  // namespace fivefold
