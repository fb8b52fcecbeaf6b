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

}  // namespace fivefold
