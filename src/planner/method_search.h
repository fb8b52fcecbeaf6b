// MethodSearch: the search when the method is open. Full training comes first; where no layout of it fits, LoRA and
// then QLoRA, the order in which the remedies name them (remedies.h), until one fits. Deterministic. Pure functions,
// thread-safe.
#pragma once

#include <vector>

#include "planner/search.h"

namespace fivefold {

// One method that was searched: `request` is what was asked for, with this method.
struct MethodResult {
  SearchRequest request;
  SearchResult result;
  bool fits() const { return !result.plans.empty(); }
};

// Of one method: the fewest ranks on which some layout fits, and what it needs there.
struct MethodNeed {
  MethodKind kind = MethodKind::kFull;
  int ranks = 0;     // 0: none up to the most that were asked about
  int64_t peak = 0;  // of a rank
};

struct MethodSearch {
  std::vector<MethodResult> tried;  // in order; only the last may fit
  std::vector<MethodNeed> needs;    // method_needs() of the request

  // The method that fits; where none does, what was asked for.
  const MethodResult& answer() const { return tried.back().fits() ? tried.back() : tried.front(); }
  // Whether other methods were searched than was asked for.
  bool went_on() const { return tried.size() > 1; }
};

// Goes beyond the request's own method only where that is full training and not fixed, and only to methods that the
// model has and the engine runs with the rest of the configuration. Errors: those of search_layouts() of the request.
Result<MethodSearch> search_methods(const SearchRequest& request);

// Of full training and of the adapters that are valid, over powers of two, then over whole nodes; none when full
// training fits one rank, or is not what the request is about. More ranks are taken never to fit less.
std::vector<MethodNeed> method_needs(const SearchRequest& request, int most_ranks);

}  // namespace fivefold
