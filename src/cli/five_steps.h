// The five-step decision about a run, each step with its numbers: memory, sharding, model splits, batch, precision and
// recompute. Pure functions, thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "planner/search.h"

namespace fivefold {

struct DecisionStep {
  std::string title;
  std::vector<std::string> lines;                       // for people
  std::vector<std::pair<std::string, double>> numbers;  // for programs: bytes, counts, shares
};

// REQUIRES: `request` is what gave `result`.
std::vector<DecisionStep> five_steps(const SearchRequest& request, const SearchResult& result);

}  // namespace fivefold
