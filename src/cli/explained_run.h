// ExplainedRun: a configuration as the command line gives it, with everything that is predicted of it.
#pragma once

#include <vector>

#include "cli/common_options.h"
#include "planner/explanation.h"

namespace fivefold {

struct ExplainedRun {
  LoadedRun run;
  HardwareSpec hardware;
  Inventory inventory;
  Explanation explanation;
};

// False: `errors` says why.
bool explain_run(const CommonOptions& options, ExplainedRun& out, std::vector<Error>& errors);

}  // namespace fivefold
