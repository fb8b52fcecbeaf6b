// explain --compare: configurations side by side. One that is not valid keeps its column, which says why.
#pragma once

#include <string>
#include <vector>

#include "cli/common_options.h"

namespace fivefold {

// Columns that a terminal shows side by side.
inline constexpr size_t kMostCompared = 12;

// `axes`: each KEY=VALUE,VALUE,...; their combinations are compared, the last axis varying fastest. Prints the table,
// or JSON. kBadInput: an axis that is none, more than kMostCompared combinations, or none that is valid.
ExitCode compare_runs(const CommonOptions& options, const std::vector<std::string>& axes);

}  // namespace fivefold
