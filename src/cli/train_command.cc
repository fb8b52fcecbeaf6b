// fivefold train CONFIG | RUN_DIRECTORY: run a configuration, or go on with a run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/common_options.h"
#include "cli/machine.h"
#include "cli/planned_refusal.h"
#include "cli/remedies_text.h"
#include "cli/scaling.h"
#include "engine/engine_api.h"
#include "planner/capacity.h"
#include "reconcile/load.h"
#include "reconcile/reconcile.h"
#include "report/tensorboard.h"
#include "report/trace.h"
#include "schedule/run_program.h"
#include "spec/run_config_io.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

struct TrainOptions {
  CommonOptions common;
  std::vector<int> scaling;
};

// Steps that --scaling runs at each number of ranks.
constexpr int kScalingSteps = 7;

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

// The folder with the complete configuration, the model, the schedule if it came from a file, and the plan. `run` goes
// on with the folder's copy of the schedule, since the file may change or go.
Result<RunPlan> make_run_directory(const std::filesystem::path& directory, LoadedRun& run,
                                   const std::string& model_config, const HardwareSpec& hardware) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Error{directory.string(), "cannot be created: " + error.message(), "choose another run.directory"};
  ParallelConfig& parallel = run.config.config.parallel;
  if (parallel.schedule == ScheduleKind::kFile) {
    parallel.schedule_file = (directory / "schedule.txt").string();
    FIVEFOLD_TRY(write_text(parallel.schedule_file, parallel.schedule_source.text));
  }
  FIVEFOLD_TRY(write_text(directory / "config.toml", to_toml(run.config.config)));
  FIVEFOLD_TRY(write_text(directory / "config.json", model_config));
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  FIVEFOLD_ASSIGN(RunPlan plan, make_run_plan(run.model, run.config, threads_per_rank(run.config, cores), &hardware));
  FIVEFOLD_TRY(write_plan_json(plan, directory));
  return plan;
}

// What the run that just ended leaves for people to look at: its timeline, its curves and, unless results are wanted
// alone, every figure beside its prediction.
Status report_run(const std::filesystem::path& directory, const CommonOptions& options) {
  FIVEFOLD_ASSIGN(
      const PlannedRun planned,
      load_planned_run(
          {.run_directory = directory, .against = {}, .set = {}, .hardware = load_run_hardware, .model = load_model}));
  FIVEFOLD_TRY(write_trace(planned, directory));
  FIVEFOLD_TRY(write_tensorboard(planned.record.ranks[0], directory / "metrics"));
  if (options.json || options.quiet) return Ok{};
  FIVEFOLD_ASSIGN(const Reconciliation reconciliation, reconcile(planned));
  print(to_text(reconciliation));
  return Ok{};
}

void report_step(const TrainProgress& step, int64_t every) {
  if (step.step % every != 0 && step.step != step.total_steps) return;
  const std::string scale = step.loss_scale > 0 ? fmt::format("  loss scale {:g}", step.loss_scale) : "";
  log_info(fmt::format("step {:>{}}/{}  loss {:.4f}  gradient norm {:.3f}  rate {:.2e}{}  {:.0f} tokens/s{}", step.step,
                       std::to_string(step.total_steps).size(), step.total_steps, step.loss, step.grad_norm,
                       step.learning_rate, scale, step.tokens_per_s, step.updated ? "" : "  (no update)"));
}

TrainRequest train_request(const LoadedRun& run, const std::string& model_config, const HardwareSpec& hardware,
                           const std::filesystem::path& directory) {
  TrainRequest request;
  request.model = run.model;
  request.model_config = model_config;
  request.config = run.config;
  request.simulate = hardware.simulated;
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
  print(fmt::format("{} after {} steps, loss {:.4f}; {}\n", result.finished ? "finished" : "stopped on request",
                    result.steps, result.loss, directory.string()));
}

// The settings of the configuration file and the command line, as they are written, are what remedies change.
RemedyList remedies_of(const CommonOptions& options, const LoadedRun& run, const HardwareSpec& hardware,
                       int64_t beyond_plan) {
  std::vector<Error> errors;
  return find_remedies(run.model, load_run_config(options, errors), hardware, {.beyond_plan = beyond_plan});
}

// What kernels may take beside the plan, as far as limits.memory counts it.
int64_t scratch_of(const RunPlan& plan, const HardwareSpec& hardware) {
  return outside_tensors(plan.model, plan.inventory, plan.config, hardware).scratch;
}

ExitCode refuse_plan(const CommonOptions& options, const LoadedRun& run, const RunPlan& plan,
                     const HardwareSpec& hardware) {
  const Ledger& fullest = plan.fullest_ledger();
  const int64_t scratch = scratch_of(plan, hardware);
  print_errors({{"limits.memory",
                 fmt::format("{} a rank, but the run needs {}{}, reached at {}",
                             format_bytes(run.config.config.limits.memory), format_bytes(fullest.peak_total + scratch),
                             scratch > 0 ? fmt::format(" with up to {} of scratch", format_bytes(scratch)) : "",
                             fullest.peak_moment),
                 "take a remedy below, or `fivefold plan` for another layout"}});
  const RemedyList list = remedies_of(options, run, hardware, 0);
  options.json ? print_json({{"does_not_fit", remedies_json(list)}}) : print(remedies_text(list));
  return ExitCode::kDoesNotFit;
}

ExitCode report_refusal(const CommonOptions& options, const LoadedRun& run, const RunPlan& plan,
                        const HardwareSpec& hardware, const MemoryRefusal& refusal) {
  const PlannedRefusal planned(refusal, plan, scratch_of(plan, hardware));
  const RemedyList list = remedies_of(options, run, hardware, planned.beyond_plan());
  print_errors({planned.error()});
  if (options.json)
    print_json({{"out_of_memory", planned.json()}, {"does_not_fit", remedies_json(list)}});
  else
    print(planned.text() + remedies_text(list));
  return ExitCode::kRunFailed;
}

ExitCode print_scaling(const TrainOptions& options, const LoadedRun& run) {
  const auto points = measure_scaling(run, options.scaling, kScalingSteps);
  if (!points.ok()) return bad_input({points.error()});
  nlohmann::ordered_json json = {{"scaling", nlohmann::ordered_json::array()}};
  Table table({"ranks", "step", "tokens/s", "per rank", "efficiency"});
  for (const ScalingPoint& point : *points) {
    json["scaling"].push_back({{"ranks", point.ranks},
                               {"step_time", point.step_s},
                               {"tokens_per_s", point.tokens_per_s},
                               {"efficiency", point.efficiency}});
    table.add_row({std::to_string(point.ranks), format_seconds(point.step_s), fmt::format("{:.0f}", point.tokens_per_s),
                   fmt::format("{:.0f}", point.tokens_per_s / point.ranks),
                   fmt::format("{:.1f} %", 100 * point.efficiency)});
  }
  options.common.json ? print_json(json) : print(table.to_string());
  return ExitCode::kDone;
}

ExitCode run_train(TrainOptions options) {
  apply_common_options(options.common);
  use_run_directory(options.common);
  std::vector<Error> errors;
  LoadedRun run;
  if (!load_run(options.common, run, errors)) return bad_input(errors);
  errors = options.scaling.empty() ? problems(run) : validate_engine(run.model, run.config.config);
  if (!errors.empty()) return bad_input(errors);
  if (!options.scaling.empty()) return print_scaling(options, run);
  const Result<HardwareSpec> hardware = load_run_hardware(run.config.config);
  if (!hardware.ok()) return bad_input({hardware.error()});
  const Result<EngineApi*> engine = load_engine();
  if (!engine.ok()) return bad_input({engine.error()});

  const std::filesystem::path directory =
      std::filesystem::path(run.config.config.run.directory) / run.config.config.run.name;
  const std::string model_config = write_model_config(run.model);
  const Result<RunPlan> plan = make_run_directory(directory, run, model_config, *hardware);
  if (!plan.ok()) return bad_input({plan.error()});
  log_info(fmt::format("{}: {} parameters, {} ranks, predicted peak {} a rank", run.config.config.run.name,
                       format_count(plan->inventory.num_parameters()), run.config.degrees.world(),
                       format_bytes(plan->fullest_ledger().peak_total)));
  const int64_t limit = run.config.config.limits.memory;
  if (limit > 0 && plan->fullest_ledger().peak_total + scratch_of(*plan, *hardware) > limit)
    return refuse_plan(options.common, run, *plan, *hardware);
  catch_stop_signals();
  const Result<TrainResult> result = (*engine)->train(train_request(run, model_config, *hardware, directory));
  if (!result.ok()) return bad_input({result.error()});
  if (result->refusal) return report_refusal(options.common, run, *plan, *hardware, *result->refusal);
  print_result(*result, directory, options.common.json);
  const Status reported = report_run(directory, options.common);
  if (!reported.ok()) print_errors({reported.error()});
  return ExitCode::kDone;
}

}  // namespace

RunCommand add_train_command(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  add_common_options(app, options->common);
  app.add_option("--scaling", options->scaling,
                 "instead of training: tokens/s at these numbers of ranks, for example 1,2,4")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->option_text("RANKS");
  return [options] { return run_train(*options); };
}

}  // namespace fivefold
