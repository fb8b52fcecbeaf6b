// The nearest legal degrees, for the hint of an error about an illegal one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace fivefold {

// "use tp = 4 or 8": the nearest values in [1, max] below and above `asked` for which legal(value) holds, either of
// them left out when there is none. Empty without any.
template <typename Predicate>
std::string nearest_degrees(std::string_view name, int64_t asked, int64_t max, Predicate legal) {
  int64_t below = std::min(asked - 1, max);
  while (below >= 1 && !legal(below)) --below;
  int64_t above = std::max<int64_t>(asked + 1, 1);
  while (above <= max && !legal(above)) ++above;
  std::string hint = "use ";
  hint.append(name).append(" = ");
  if (below >= 1 && above <= max)
    return hint.append(std::to_string(below)).append(" or ").append(std::to_string(above));
  if (below >= 1) return hint.append(std::to_string(below));
  if (above <= max) return hint.append(std::to_string(above));
  return "";
}

}  // namespace fivefold
