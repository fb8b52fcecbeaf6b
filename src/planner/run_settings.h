// RunSettings: how to get from one configuration to a run, as settings to paste. Pure functions, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "spec/model.h"
#include "spec/run_config.h"

namespace fivefold {

struct RunSettings {
  std::vector<std::string> settings;  // KEY=VALUE, for --set
  RunConfig config;                   // `from` with them
};

// Of what differs between `from` and `to` only what the run needs: `config` resolves to what `to` does, up to the ZeRO
// level where there is one shard, which is the same at each. REQUIRES: validate_layout() finds nothing in `to`.
RunSettings run_settings(const ModelSpec& model, const RunConfig& from, const RunConfig& to);

}  // namespace fivefold
