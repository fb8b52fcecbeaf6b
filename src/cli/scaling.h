// Scaling: tokens/s over numbers of ranks at the same work per rank: the baseline that scaling efficiency refers to.
#pragma once

#include <vector>

#include "base/result.h"
#include "cli/common_options.h"

namespace fivefold {

struct ScalingPoint {
  int ranks = 1;
  double step_s = 0;        // median of the steps after the first two
  double tokens_per_s = 0;  // all ranks
  double efficiency = 1;    // tokens/s per rank against the first point's
};

// Runs `steps` steps of the configuration at each number of data-parallel ranks, on random tokens. Microbatch,
// microbatches per step and threads per rank stay; the global batch grows with the ranks.
// Errors: a number of ranks that the layout does not allow; those of the engine.
Result<std::vector<ScalingPoint>> measure_scaling(const LoadedRun& run, const std::vector<int>& ranks, int steps);

}  // namespace fivefold
