#include "cli/foreign_run.h"

#include <CLI/CLI.hpp>

#include "base/text.h"
#include "cli/machine.h"

namespace fivefold {

void add_log_options(CLI::App& app, LogOptions& options) {
  app.add_option("--log", options.files, "log of the run in another framework; may be repeated")
      ->allow_extra_args(false)
      ->option_text("FILE");
  app.add_option("--from", options.from,
                 "what the logs are: auto, megatron, torchtitan, hf, nvidia-smi, snapshot, messages")
      ->option_text("KIND");
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

std::optional<FrameworkPrediction> load_framework_prediction(const CommonOptions& options, const std::string& hardware,
                                                             std::vector<Error>& errors) {
  RunConfig config = load_run_config(options, errors);
  if (!errors.empty()) return std::nullopt;
  if (config.framework.name == Framework::kFivefold) {
    errors.push_back({"framework.name", "the configuration is of fivefold's own engine, whose runs leave a record",
                      "say which framework the log is of, for example --set framework.name=megatron"});
    return std::nullopt;
  }
  if (!hardware.empty()) config.hardware.name = hardware;
  const Result<ModelSpec> model = load_model(config.model);
  const Result<HardwareSpec> machine = load_run_hardware(config);
  if (!model.ok()) errors.push_back(model.error());
  if (!machine.ok()) errors.push_back(machine.error());
  if (!errors.empty()) return std::nullopt;
  Result<FrameworkPrediction> prediction = predict_framework(*model, config, *machine);
  if (!prediction.ok()) {
    errors.push_back(prediction.error());
    return std::nullopt;
  }
  return *std::move(prediction);
}

}  // namespace fivefold
