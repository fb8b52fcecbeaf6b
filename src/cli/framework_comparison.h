// Runs in other frameworks as the command line gives them, one or several side by side: memory by the profiles' lines,
// time by parts.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/comparison_axes.h"
#include "planner/profiles/framework_search.h"

namespace fivefold {

struct ExplainedFrameworkRun {
  FrameworkPlan plan;
  HardwareSpec hardware;
  std::vector<std::string> assumed;  // of the hardware
};
// Errors: those of the model, the hardware and framework_run(). REQUIRES: framework.name is not kFivefold.
Result<ExplainedFrameworkRun> explain_framework_run(const RunConfig& config);

// Whether the first combination is of another framework; its errors are left to the comparison.
bool is_of_frameworks(const CommonOptions& options, const std::vector<ComparedAxis>& axes);
// `explain --compare` of them.
ExitCode compare_framework_runs(const CommonOptions& options, const std::vector<ComparedAxis>& axes);

}  // namespace fivefold
