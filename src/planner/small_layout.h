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

// Of full training and of the adapters that are valid, over powers of two, then over whole nodes; none when full
// training fits one rank, or is not what the request is about. More ranks are taken never to fit less.
std::vector<MethodNeed> method_needs(const SearchRequest& request, int most_ranks);

}  // namespace fivefold
