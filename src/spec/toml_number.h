// A number of a TOML file as a double.
#pragma once

#include <toml++/toml.h>

namespace fivefold {

// An integer rounds to the nearest double; toml++'s own value<double>() has no value for one beyond 2^53.
// REQUIRES: node.is_number().
inline double toml_number(const toml::node& node) {
  if (const auto* integer = node.as_integer()) return static_cast<double>(integer->get());
  return node.as_floating_point()->get();
}

}  // namespace fivefold
