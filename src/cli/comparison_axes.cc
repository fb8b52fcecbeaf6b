#include "cli/comparison_axes.h"

#include <fmt/format.h>

#include "base/text.h"
#include "cli/comparison.h"

namespace fivefold {

Result<std::vector<ComparedAxis>> parse_axes(const std::vector<std::string>& texts) {
  std::vector<ComparedAxis> axes;
  size_t combinations = 1;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos)
      return Error{"--compare", "\"" + text + "\" is not KEY=VALUE,VALUE,...", "for example parallel.zero=0,1,2,3"};
    axes.push_back({text.substr(0, equals), split(text.substr(equals + 1), ',')});
    combinations *= axes.back().values.size();
  }
  if (combinations > kMostCompared)
    return Error{"--compare", fmt::format("{} configurations are more than fit side by side", combinations),
                 fmt::format("compare at most {}", kMostCompared)};
  return axes;
}

size_t num_combinations(const std::vector<ComparedAxis>& axes) {
  size_t combinations = 1;
  for (const ComparedAxis& axis : axes) combinations *= axis.values.size();
  return combinations;
}

std::vector<std::string> combination(const std::vector<ComparedAxis>& axes, size_t index) {
  std::vector<std::string> values(axes.size());
  for (size_t i = axes.size(); i-- > 0;) {
    const size_t n = axes[i].values.size();
    values[i] = axes[i].values[index % n];
    index /= n;
  }
  return values;
}

}  // namespace fivefold
