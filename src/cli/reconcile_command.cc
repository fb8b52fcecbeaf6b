// fivefold reconcile RUN_DIRECTORY: the plan of a run beside its record; with --log, of a run in another framework
// beside its log.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common_options.h"
#include "cli/foreign_run.h"
#include "cli/machine.h"
#include "reconcile/load.h"
#include "reconcile/log_rows.h"
#include "reconcile/recorded_step.h"
#include "report/timeline_picture.h"

namespace fivefold {
namespace {

struct ReconcileOptions {
  CommonOptions common;  // `config` is the run's folder, or, with logs, a configuration
  std::string against, baseline, hardware;
  LogOptions logs;
  bool timeline = false;
};

ExitCode bad_input(const Error& error) {
  print_errors({error});
  return ExitCode::kBadInput;
}

// The planned step, the measured one, and the plan's order with the CPU time that each instruction took.
std::string timeline_text(const PlannedRun& run) {
  std::vector<TimelineBlock> blocks;
  const RunPlan& plan = run.plan;
  if (plan.time) blocks.push_back(replay_block("planned", plan.time->replay, plan.model, plan.config));
  blocks.push_back(measured_block(run));
  if (const auto recorded = replay_recorded(run))
    blocks.push_back(replay_block("recorded CPU durations, replayed", *recorded, plan.model, plan.config));
  if (blocks.back().lines.empty()) return "\nnote: the record has no times of the planned program: no timeline\n";
  return "\nTimeline of a step\n" + draw_timelines(blocks, output_width());
}

ExitCode reconcile_logs(const ReconcileOptions& options) {
  std::vector<Error> errors;
  const auto log = read_logs(options.logs, errors);
  const auto prediction =
      load_framework_prediction(options.common, options.logs, options.hardware, log ? &*log : nullptr, errors);
  if (!prediction || !log) {
    print_errors(errors);
    return ExitCode::kBadInput;
  }
  const Reconciliation result = reconcile_log(*prediction, *log);
  if (options.common.json)
    print_json(to_json(result));
  else
    print(to_text(result));
  return result.pass() ? ExitCode::kDone : ExitCode::kOutsideBound;
}

ExitCode run_reconcile(const ReconcileOptions& options) {
  apply_common_options(options.common);
  if (!options.logs.files.empty()) return reconcile_logs(options);
  if (options.common.config.empty())
    return bad_input({"reconcile", "no run is given", "fivefold reconcile runs/NAME, or reconcile CONFIG --log FILE"});
  LoadPlannedRun load{.run_directory = options.common.config,
                      .against = options.against,
                      .set = options.common.set,
                      .hardware =
                          [&options](RunConfig config) {
                            if (!options.hardware.empty()) config.hardware.name = options.hardware;
                            return load_run_hardware(config);
                          },
                      .model = load_model};
  const Result<PlannedRun> run = load_planned_run(load);
  if (!run.ok()) return bad_input(run.error());
  std::optional<PlannedRun> baseline;
  if (!options.baseline.empty()) {
    load.run_directory = options.baseline;
    load.against.clear();
    load.set.clear();
    Result<PlannedRun> loaded = load_planned_run(load);
    if (!loaded.ok()) return bad_input(loaded.error());
    baseline = *std::move(loaded);
  }
  const Result<Reconciliation> result = reconcile(*run, baseline ? &*baseline : nullptr);
  if (!result.ok()) return bad_input(result.error());
  if (options.common.json) {
    print_json(to_json(*result));
  } else {
    print(to_text(*result));
    if (options.timeline) print(timeline_text(*run));
  }
  return result->pass() ? ExitCode::kDone : ExitCode::kOutsideBound;
}

}  // namespace

RunCommand add_reconcile_command(CLI::App& app) {
  auto options = std::make_shared<ReconcileOptions>();
  add_common_options(app, options->common);
  app.get_option("config")
      ->description("folder of the run (runs/NAME); with --log the configuration of a run in another framework")
      ->option_text("RUN_DIRECTORY|CONFIG");
  add_log_options(app, options->logs);
  app.add_option("--against", options->against, "plan this configuration instead of the recorded one")
      ->option_text("CONFIG");
  app.add_option("--baseline", options->baseline, "run that scaling efficiency refers to")
      ->option_text("RUN_DIRECTORY");
  app.add_option("--hardware", options->hardware, "hardware to predict times with")->option_text("NAME|FILE");
  app.add_flag("--timeline", options->timeline, "draw the planned and a measured step, a line per rank")
      ->excludes(app.get_option("--json"));
  return [options] { return run_reconcile(*options); };
}

}  // namespace fivefold
