// The axes of `explain --compare`: keys and the values that they take side by side.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace fivefold {

struct ComparedAxis {
  std::string key;
  std::vector<std::string> values;
};

// "parallel.zero=0,1,2,3" each. Errors ("--compare"): not of this form, more combinations than kMostCompared.
Result<std::vector<ComparedAxis>> parse_axes(const std::vector<std::string>& texts);
size_t num_combinations(const std::vector<ComparedAxis>& axes);
// A value of each axis, the last one quickest. REQUIRES: index < num_combinations().
std::vector<std::string> combination(const std::vector<ComparedAxis>& axes, size_t index);

}  // namespace fivefold
