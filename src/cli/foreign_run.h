// A run in another framework as the command line gives it: its configuration with all that is predicted, and its logs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/common_options.h"
#include "reconcile/framework_prediction.h"
#include "record/foreign_log.h"

namespace fivefold {

struct LogOptions {
  std::vector<std::string> files;
  std::string from = "auto";
  int64_t gpus = 0;  // of the run, where its launch script does not say
};
// --log, --from and --gpus. REQUIRES: `options` outlives `app`.
void add_log_options(CLI::App& app, LogOptions& options);

// All files as one log. Nothing: `errors` says why.
std::optional<ForeignLog> read_logs(const LogOptions& options, std::vector<Error>& errors);

// The configuration is fivefold's, another framework's file, or, without one, the arguments in the log. `hardware`:
// instead of the configuration's; empty: that. Nothing: `errors` says why.
std::optional<FrameworkPrediction> load_framework_prediction(const CommonOptions& options, const LogOptions& logs,
                                                             const std::string& hardware, const ForeignLog* log,
                                                             std::vector<Error>& errors);

}  // namespace fivefold
