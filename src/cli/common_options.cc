#include "cli/common_options.h"

#include <CLI/CLI.hpp>
#include <map>

#include "base/log.h"
#include "base/progress.h"
#include "schedule/schedule_source.h"
#include "spec/model_named.h"
#include "spec/run_config_io.h"
#include "spec/validate.h"

namespace fivefold {

void add_common_options(CLI::App& app, CommonOptions& options) {
  static const std::map<std::string, ColorMode> modes = {
      {"auto", ColorMode::kAuto}, {"always", ColorMode::kAlways}, {"never", ColorMode::kNever}};
  app.add_option("config", options.config, "configuration file (TOML)")->option_text("CONFIG");
  app.add_option("--set", options.set, "override a key of the configuration; may be repeated")
      ->allow_extra_args(false)
      ->option_text("KEY=VALUE");
  app.add_flag("--json", options.json, "print JSON");
  app.add_option("--color", options.color, "colours: auto, always or never")
      ->transform(CLI::CheckedTransformer(modes))
      ->option_text("WHEN");
  app.add_flag("--quiet", options.quiet, "print results and errors only");
}

void apply_common_options(const CommonOptions& options) {
  set_color(options.color);
  if (options.quiet) set_log_level(LogLevel::kWarning);
  Progress::set_quiet(options.quiet);
}

LoadedConfig load_run_keys(const CommonOptions& options, std::vector<Error>& errors) {
  LoadedConfig loaded = load_config({.file = options.config, .set = options.set, .flags = options.flags});
  errors.insert(errors.end(), loaded.errors.begin(), loaded.errors.end());
  if (const Status read = read_schedule_source(loaded.config); !read.ok()) errors.push_back(read.error());
  return loaded;
}

RunConfig load_run_config(const CommonOptions& options, std::vector<Error>& errors) {
  return load_run_keys(options, errors).config;
}

Result<ModelSpec> load_model(const ModelConfig& model) {
  if (!model.config.empty()) return read_model_config(model.config);
  if (model.name.empty())
    return Error{"model.name", "no model is given", "give model.name or model.config; `fivefold plan --list models`"};
  FIVEFOLD_ASSIGN(const std::filesystem::path path, find_named_model(model.name));
  return read_model_config(path);
}

bool load_run(const CommonOptions& options, LoadedRun& run, std::vector<Error>& errors) {
  const RunConfig config = load_run_config(options, errors);
  if (!errors.empty()) return false;
  Result<ModelSpec> model = load_model(config.model);
  if (!model.ok()) {
    errors.push_back(model.error());
    return false;
  }
  run.model = with_method(*std::move(model), config.method);
  errors = validate_layout(run.model, config);
  if (!errors.empty()) return false;
  run.config = resolve(config, run.model).value();
  return true;
}

}  // namespace fivefold
