// What the planner can predict today, in the words of validate.h: the layouts and methods whose memory and time follow
// from a Program. Thread-safe: no state.
#pragma once

#include <vector>

#include "base/result.h"
#include "spec/model.h"
#include "spec/run_config.h"

namespace fivefold {

// Empty: ledger, traffic and cost apply.
std::vector<Error> planner_scope(const ModelSpec& model, const RunConfig& config);

// Whether `changed` is not planned or has refusals of the engine that `config` has not: a run that is only planned may
// have some from the start. `base`: with or without an adapter, since the method of each configuration counts.
bool adds_refusal(const ModelSpec& base, const RunConfig& config, const RunConfig& changed);

}  // namespace fivefold
