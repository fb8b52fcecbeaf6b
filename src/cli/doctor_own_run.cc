#include "cli/doctor_own_run.h"

#include <filesystem>

#include "cli/machine.h"
#include "planner/scope.h"
#include "reconcile/load.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

// A run that may have a record.
struct OwnRun {
  RunPlan plan;
  HardwareSpec hardware;
  std::optional<Reconciliation> record;
};

Result<OwnRun> load_recorded(const CommonOptions& options, const std::string& hardware) {
  HardwareSpec used;
  const LoadPlannedRun load{.run_directory = options.config,
                            .against = {},
                            .set = options.set,
                            .hardware = [&](RunConfig config) -> Result<HardwareSpec> {
                              if (!hardware.empty()) config.hardware.name = hardware;
                              FIVEFOLD_ASSIGN(used, load_run_hardware(config));
                              return used;
                            },
                            .model = load_model};
  FIVEFOLD_ASSIGN(PlannedRun run, load_planned_run(load));
  FIVEFOLD_ASSIGN(Reconciliation record, reconcile(run));
  return OwnRun{std::move(run.plan), std::move(used), std::move(record)};
}

std::optional<OwnRun> load_planned(const CommonOptions& options, const std::string& hardware,
                                   std::vector<Error>& errors) {
  LoadedRun loaded;
  if (!load_run(options, loaded, errors)) return std::nullopt;
  RunConfig config = loaded.config.config;
  if (!hardware.empty()) config.hardware.name = hardware;
  const Result<HardwareSpec> machine = load_run_hardware(config);
  errors = planner_scope(loaded.model, config);
  if (!machine.ok()) errors.push_back(machine.error());
  if (!errors.empty()) return std::nullopt;
  Result<RunPlan> plan = make_run_plan(loaded.model, loaded.config, 1, &*machine);
  if (!plan.ok()) {
    errors.push_back(plan.error());
    return std::nullopt;
  }
  return OwnRun{*std::move(plan), *machine, std::nullopt};
}

}  // namespace

std::optional<Diagnosis> diagnose_own_run(const CommonOptions& options, const std::string& hardware,
                                          std::optional<Symptom> symptom, std::vector<Error>& errors) {
  std::optional<OwnRun> run;
  if (std::filesystem::is_directory(options.config)) {
    Result<OwnRun> recorded = load_recorded(options, hardware);
    if (!recorded.ok()) {
      errors.push_back(recorded.error());
      return std::nullopt;
    }
    run = *std::move(recorded);
  } else {
    run = load_planned(options, hardware, errors);
    if (!run) return std::nullopt;
  }
  const RemedyList remedies = find_remedies(run->plan.model, run->plan.config.config, run->hardware);
  if (!symptom) symptom = remedies.before.fits() ? Symptom::kSlow : Symptom::kOutOfMemory;
  return diagnose_own(run->plan, run->record ? &*run->record : nullptr, remedies, *symptom);
}

}  // namespace fivefold
