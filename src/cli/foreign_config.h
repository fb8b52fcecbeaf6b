// The configuration of a run in another framework from what somebody has of it: a launch script or a configuration
// file, or the arguments that Megatron-LM prints at the start of its log.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "record/foreign_log.h"
#include "spec/model.h"
#include "spec/run_config.h"

namespace fivefold {

struct ForeignConfig {
  RunConfig config;
  ModelSpec model;                 // without an adapter
  std::vector<std::string> notes;  // what it leaves open
};

// The file is not of fivefold's own format.
bool is_foreign_config(const std::filesystem::path& file);
// `gpus`: where the file does not say; 0: not known. Nothing: `errors` says why.
std::optional<ForeignConfig> config_of_file(const std::filesystem::path& file, int64_t gpus,
                                            std::vector<Error>& errors);
// Whether the log has the arguments that a configuration needs.
bool has_arguments(const ForeignLog& log);
// Nothing: `errors` says why. REQUIRES: has_arguments().
std::optional<ForeignConfig> config_of_arguments(const ForeignLog& log, std::vector<Error>& errors);

}  // namespace fivefold
