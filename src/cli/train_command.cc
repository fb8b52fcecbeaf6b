// fivefold train CONFIG | RUN_DIRECTORY: run a configuration, or go on with a run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "cli/common_options.h"
#include "engine/engine_api.h"
#include "planner/ledger.h"
#include "spec/run_config_io.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

struct TrainOptions {
  CommonOptions common;
};

std::atomic<bool> stop_requested{false};

// The first Ctrl-C (or SIGTERM) saves and stops after the step, the second stops at once.
void on_stop_signal(int) {
  if (stop_requested.exchange(true)) std::_Exit(static_cast<int>(ExitCode::kRunFailed));
}

void catch_stop_signals() {
  struct sigaction action{};
  action.sa_handler = on_stop_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// A run is named by its directory too: `fivefold train runs/NAME` goes on with it.
void use_run_directory(CommonOptions& options) {
  const std::filesystem::path given = options.config;
  if (!given.empty() && std::filesystem::is_directory(given)) options.config = (given / "config.toml").string();
}

Status write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return Error{path.string(), "cannot be written", "choose another run.directory"};
  return Ok{};
}

Status make_run_directory(const std::filesystem::path& directory, const LoadedRun& run, const std::string& model_config) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Error{directory.string(), "cannot be created: " + error.message(), "choose another run.directory"};
  FIVEFOLD_TRY(write_text(directory / "config.toml", to_toml(run.config.config)));
  return write_text(directory / "config.json", model_config);
}

void report_step(const TrainProgress& step, int64_t every) {
  if (step.step % every != 0 && step.step != step.total_steps) return;
  log_info(fmt::format("step {:>{}}/{}  loss {:.4f}  gradient norm {:.3f}  rate {:.2e}  {:.0f} tokens/s{}", step.step,
                       std::to_string(step.total_steps).size(), step.total_steps, step.loss, step.grad_norm,
                       step.learning_rate, step.tokens_per_s, step.updated ? "" : "  (no update)"));
}

TrainRequest train_request(const LoadedRun& run, const std::string& model_config, const std::filesystem::path& directory) {
  TrainRequest request;
  request.model = run.model;
  request.model_config = model_config;
  request.config = run.config;
  request.run_directory = directory;
  request.stop = &stop_requested;
  const int64_t every = std::max<int64_t>(1, run.config.config.log.every);
  request.on_step = [every](const TrainProgress& step) { report_step(step, every); };
  request.on_evaluation = [](int64_t step, double loss) {
    log_info(fmt::format("step {}: validation loss {:.4f}", step, loss));
  };
  request.on_message = [](const std::string& text) { log_warning(text); };
  return request;
}

std::vector<Error> problems(const LoadedRun& run) {
  std::vector<Error> errors = validate_engine(run.model, run.config.config);
  for (Error& error : validate_run(run.config.config)) errors.push_back(std::move(error));
  return errors;
}

ExitCode bad_input(const std::vector<Error>& errors) {
  print_errors(errors);
  return ExitCode::kBadInput;
}

void print_result(const TrainResult& result, const std::filesystem::path& directory, bool json) {
  if (json) {
    print_json({{"run", directory.string()},
                {"first_step", result.first_step},
                {"steps", result.steps},
                {"finished", result.finished},
                {"loss", result.loss},
                {"checkpoint", result.checkpoint.string()}});
    return;
  }
  print(fmt::format("{} after {} steps, loss {:.4f}; {}\n", result.finished ? "finished" : "stopped on request", result.steps,
                    result.loss, directory.string()));
}

ExitCode run_train(TrainOptions options) {
  apply_common_options(options.common);
  use_run_directory(options.common);
  std::vector<Error> errors;
  LoadedRun run;
  if (!load_run(options.common, run, errors)) return bad_input(errors);
  errors = problems(run);
  if (!errors.empty()) return bad_input(errors);
  const Result<EngineApi*> engine = load_engine();
  if (!engine.ok()) return bad_input({engine.error()});

  const std::filesystem::path directory =
      std::filesystem::path(run.config.config.run.directory) / run.config.config.run.name;
  const std::string model_config = write_model_config(run.model);
  const Status made = make_run_directory(directory, run, model_config);
  if (!made.ok()) return bad_input({made.error()});
  const Ledger ledger = predict_memory(run.model, build_inventory(run.model), run.config, 1);
  log_info(fmt::format("{}: {} parameters, {} ranks, predicted peak {} a rank", run.config.config.run.name,
                       format_count(build_inventory(run.model).num_parameters()), run.config.degrees.world(),
                       format_bytes(ledger.peak_total)));
  catch_stop_signals();
  const Result<TrainResult> result = (*engine)->train(train_request(run, model_config, directory));
  if (!result.ok()) return bad_input({result.error()});
  print_result(*result, directory, options.common.json);
  return ExitCode::kDone;
}

}  // namespace

RunCommand add_train_command(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  add_common_options(app, options->common);
  return [options] { return run_train(*options); };
}

}  // namespace fivefold
