// SmallLayout: the layout that needs least on so many ranks: one sequence at a time, every layer recomputed, as far as
// these are not fixed, and the smallest of the splits and shardings. Pure functions, thread-safe.
#pragma once

#include <optional>

#include "planner/search.h"

namespace fivefold {

struct SmallLayout {
  RunConfig written;  // unresolved
  ResolvedConfig config;
  bool fits = false;
};

// Nothing: no layout is legal.
std::optional<SmallLayout> smallest_layout(const SearchRequest& request, const Inventory& inventory, int ranks);
// Nothing: none fits.
std::optional<ResolvedConfig> small_layout(const SearchRequest& request, const Inventory& inventory, int ranks);

}  // namespace fivefold
