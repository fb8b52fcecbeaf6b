// CommonOptions: what every command takes: a configuration and settings on top of it, and how to print. Loading: from
// those to the model, the resolved configuration and the hardware, with every problem reported at once.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/output.h"
#include "spec/hardware.h"
#include "spec/model.h"
#include "spec/run_config_io.h"
#include "spec/run_config_resolve.h"

namespace fivefold {

struct CommonOptions {
  std::string config;              // path; empty: defaults and settings only
  std::vector<std::string> set;    // KEY=VALUE
  std::vector<std::string> flags;  // KEY=VALUE that the command's own flags stand for: stronger than `set`
  bool json = false;
  bool quiet = false;
  ColorMode color = ColorMode::kAuto;
};

// REQUIRES: `options` outlives `app`.
void add_common_options(CLI::App& app, CommonOptions& options);
// Colour and quietness, to be called when the command starts.
void apply_common_options(const CommonOptions& options);

struct LoadedRun {
  ModelSpec model;
  ResolvedConfig config;
};

// What the file and the settings say, unresolved; `errors` gets every problem.
RunConfig load_run_config(const CommonOptions& options, std::vector<Error>& errors);
// The same, with the keys that they set.
LoadedConfig load_run_keys(const CommonOptions& options, std::vector<Error>& errors);
// [model] of a configuration: by name or by path. Errors: neither given, unknown, unreadable.
Result<ModelSpec> load_model(const ModelConfig& model);
// Reads, validates the layout, resolves. Without a value `errors` is not empty.
bool load_run(const CommonOptions& options, LoadedRun& run, std::vector<Error>& errors);

}  // namespace fivefold
