// The five-step decision about a run in another framework, each step with its numbers (five_steps.h has those of
// fivefold's own engine). Pure functions, thread-safe.
#pragma once

#include <vector>

#include "cli/five_steps.h"
#include "planner/profiles/framework_search.h"

namespace fivefold {

// REQUIRES: `request` is what gave `result`.
std::vector<DecisionStep> framework_steps(const FrameworkRequest& request, const FrameworkResult& result);

// Why a layout is not the plan: by how much it is slower and where, or what keeps it from fitting.
std::string losing_reason(const FrameworkPlan& best, const FrameworkPlan& other);

}  // namespace fivefold
