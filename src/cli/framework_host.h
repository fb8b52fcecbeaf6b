// What a run of another framework needs while it starts, and of a node's host: for explain and for JSON. Pure
// functions, thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "planner/profiles/framework_search.h"

namespace fivefold {

std::string host_text(const FrameworkPlan& plan, const HardwareSpec& hardware, bool formulas);
nlohmann::ordered_json host_json(const FrameworkPlan& plan, const HardwareSpec& hardware);

}  // namespace fivefold
