#include "cli/foreign_run.h"

#include <CLI/CLI.hpp>

#include "base/text.h"
#include "cli/foreign_config.h"
#include "cli/machine.h"

namespace fivefold {

void add_log_options(CLI::App& app, LogOptions& options) {
  app.add_option("--log", options.files, "log of the run in another framework; may be repeated")
      ->allow_extra_args(false)
      ->option_text("FILE");
  app.add_option("--from", options.from,
                 "what the logs are: auto, megatron, torchtitan, hf, nvidia-smi, snapshot, messages")
      ->option_text("KIND");
  app.add_option("--gpus", options.gpus, "GPUs of the run, where its launch script does not say")
      ->check(CLI::Range(1, 1 << 20))
      ->option_text("N");
}

std::optional<ForeignLog> read_logs(const LogOptions& options, std::vector<Error>& errors) {
  std::optional<LogKind> kind;
  if (options.from != "auto") {
    kind = log_kind_of(options.from);
    if (!kind) {
      std::vector<std::string> names{"auto"};
      for (int i = 0; i < kNumLogKinds; ++i) names.emplace_back(to_string(static_cast<LogKind>(i)));
      errors.push_back({"--from", "\"" + options.from + "\" is no kind of log", name_hint(options.from, names)});
      return std::nullopt;
    }
  }
  std::optional<ForeignLog> all;
  for (const std::string& file : options.files) {
    Result<ForeignLog> log = read_foreign_log(file, kind);
    if (!log.ok()) {
      errors.push_back(log.error());
      return std::nullopt;
    }
    if (all)
      add_log(*all, *std::move(log));
    else
      all = *std::move(log);
  }
  return all;
}

namespace {

// The run of another framework's file, or of the log, with the settings on top. Nothing: there is none, or `errors`
// says why.
std::optional<ForeignConfig> foreign_config(const CommonOptions& options, int64_t gpus, const ForeignLog* log,
                                            std::vector<Error>& errors) {
  std::optional<ForeignConfig> found;
  if (is_foreign_config(options.config))
    found = config_of_file(options.config, gpus, errors);
  else if (options.config.empty() && log != nullptr && has_arguments(*log))
    found = config_of_arguments(*log, errors);
  if (!found) return std::nullopt;
  const LoadedConfig loaded = load_config({.set = options.set}, found->config);
  errors.insert(errors.end(), loaded.errors.begin(), loaded.errors.end());
  found->config = loaded.config;
  return found;
}

}  // namespace

std::optional<FrameworkPrediction> load_framework_prediction(const CommonOptions& options, const LogOptions& logs,
                                                             const std::string& hardware, const ForeignLog* log,
                                                             std::vector<Error>& errors) {
  std::optional<ForeignConfig> run = foreign_config(options, logs.gpus, log, errors);
  if (!errors.empty()) return std::nullopt;
  if (run && hardware.empty() && run->config.hardware == HardwareConfig{})
    errors.push_back({"--hardware", "nothing says which GPUs the run had", "for example --hardware dgx-h100"});
  if (!run) {
    if (options.config.empty() && options.set.empty()) {
      errors.push_back({"CONFIG", "no configuration is given, and the log has no arguments of Megatron-LM",
                        "the configuration of the run, or its launch script"});
      return std::nullopt;
    }
    run.emplace();
    run->config = load_run_config(options, errors);
    if (errors.empty() && run->config.framework.name == Framework::kFivefold)
      errors.push_back({"framework.name", "the configuration is of fivefold's own engine, whose runs leave a record",
                        "say which framework the log is of, for example --set framework.name=megatron"});
    if (!errors.empty()) return std::nullopt;
    const Result<ModelSpec> model = load_model(run->config.model);
    if (model.ok())
      run->model = *model;
    else
      errors.push_back(model.error());
  }
  if (!hardware.empty()) run->config.hardware.name = hardware;
  const Result<HardwareSpec> machine = errors.empty() ? load_run_hardware(run->config) : Result<HardwareSpec>(Error{});
  if (!machine.ok() && errors.empty()) errors.push_back(machine.error());
  if (!errors.empty()) return std::nullopt;
  Result<FrameworkPrediction> prediction = predict_framework(run->model, run->config, *machine);
  if (!prediction.ok()) {
    errors.push_back(prediction.error());
    return std::nullopt;
  }
  prediction->notes = run->notes;
  return *std::move(prediction);
}

}  // namespace fivefold
