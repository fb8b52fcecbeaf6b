// fivefold reconcile RUN_DIRECTORY: the plan of a run beside its record.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common_options.h"
#include "cli/machine.h"
#include "reconcile/load.h"

namespace fivefold {
namespace {

struct ReconcileOptions {
  CommonOptions common;  // `config` is the run's folder
  std::string against, baseline, hardware;
};

ExitCode bad_input(const Error& error) {
  print_errors({error});
  return ExitCode::kBadInput;
}

ExitCode run_reconcile(const ReconcileOptions& options) {
  apply_common_options(options.common);
  if (options.common.config.empty()) return bad_input({"reconcile", "no run is given", "fivefold reconcile runs/NAME"});
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
  }
  return result->pass() ? ExitCode::kDone : ExitCode::kOutsideBound;
}

}  // namespace

RunCommand add_reconcile_command(CLI::App& app) {
  auto options = std::make_shared<ReconcileOptions>();
  add_common_options(app, options->common);
  app.get_option("config")->description("folder of the run (runs/NAME)")->option_text("RUN_DIRECTORY");
  app.add_option("--against", options->against, "plan this configuration instead of the recorded one")
      ->option_text("CONFIG");
  app.add_option("--baseline", options->baseline, "run that scaling efficiency refers to")
      ->option_text("RUN_DIRECTORY");
  app.add_option("--hardware", options->hardware, "hardware to predict times with")->option_text("NAME|FILE");
  return [options] { return run_reconcile(*options); };
}

}  // namespace fivefold
