// PublishedError: how far the predictions of a profile were from published runs, as the bound that a run's own figures
// are held against. Pure function.
#pragma once

#include <string_view>

#include "planner/profiles/framework_run.h"

namespace fivefold {

// 90th percentiles of the error's size, as shares, each with the row of docs/accuracy.md that it was rounded up from:
// where a framework has several sources, that of runs which are most like a user's.
struct PublishedError {
  double memory = 0;
  std::string_view memory_source;
  double throughput = 0;
  std::string_view throughput_source;
};

// REQUIRES: not fivefold's own engine.
PublishedError published_error(const FrameworkRun& run);

}  // namespace fivefold
