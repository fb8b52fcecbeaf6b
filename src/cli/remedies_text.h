// The remedies of a run that does not fit (planner/remedies.h) as a table with settings to paste, and as JSON. Pure
// functions but for colours (output.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "planner/remedies.h"

namespace fivefold {

// `of`: whose remedies they are, after "Remedies".
std::string remedies_text(const RemedyList& list, std::string_view of = "");
// {"peak", "capacity", "each": [{"remedy", "set", "saves", "peak", "capacity", "fits", "tokens_per_s", "changes"}],
// "together": the same or null}.
nlohmann::ordered_json remedies_json(const RemedyList& list);

}  // namespace fivefold
