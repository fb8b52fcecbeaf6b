#include "reconcile/load.h"

#include <optional>

#include "record/record_reader.h"
#include "schedule/schedule_source.h"
#include "spec/run_config_io.h"

namespace fivefold {
namespace {

Result<RunConfig> first_error_or(const LoadedConfig& loaded) {
  if (!loaded.errors.empty()) return loaded.errors.front();
  return loaded.config;
}

bool names_model(const ModelConfig& model) { return !model.name.empty() || !model.config.empty(); }

}  // namespace

Result<PlannedRun> load_planned_run(const LoadPlannedRun& options) {
  FIVEFOLD_ASSIGN(RunRecord record, read_run_record(options.run_directory));
  const RunStart& start = record.ranks[0].sessions.back().start;
  FIVEFOLD_ASSIGN(RunConfig config, first_error_or(parse_config(start.configuration, "run record: configuration")));
  FIVEFOLD_TRY(set_schedule_source(config, start.schedule, "run record: schedule"));
  FIVEFOLD_ASSIGN(ModelSpec model, parse_model_config(start.model_config, "run record: model_config"));
  if (!options.against.empty() || !options.set.empty()) {
    const RunConfig recorded = config;
    const RunConfig base = options.against.empty() ? recorded : RunConfig{};
    FIVEFOLD_ASSIGN(config,
                    first_error_or(load_config({.file = options.against, .set = options.set, .flags = {}}, base)));
    if (config.parallel.schedule_file != recorded.parallel.schedule_file) FIVEFOLD_TRY(read_schedule_source(config));
    // Another model only when one is named: the recorded one may be gone from where it was.
    if (names_model(config.model) && !(config.model == recorded.model)) {
      FIVEFOLD_ASSIGN(model, options.model(config.model));
    }
  }
  model = with_method(std::move(model), config.method);
  FIVEFOLD_ASSIGN(const ResolvedConfig resolved, resolve(config, model));
  std::optional<HardwareSpec> hardware;
  if (options.hardware) {
    FIVEFOLD_ASSIGN(hardware, options.hardware(config));
  }
  FIVEFOLD_ASSIGN(RunPlan plan, make_run_plan(model, resolved, start.threads, hardware ? &*hardware : nullptr));
  return PlannedRun{std::move(plan), std::move(record)};
}

}  // namespace fivefold
