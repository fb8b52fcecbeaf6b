#include "cli/explained_run.h"

#include "cli/machine.h"
#include "planner/scope.h"

namespace fivefold {

bool explain_run(const CommonOptions& options, ExplainedRun& out, std::vector<Error>& errors) {
  if (!load_run(options, out.run, errors)) return false;
  errors = planner_scope(out.run.model, out.run.config.config);
  Result<HardwareSpec> hardware = load_run_hardware(out.run.config.config);
  if (!hardware.ok()) errors.push_back(hardware.error());
  if (!errors.empty()) return false;
  out.hardware = *std::move(hardware);
  out.inventory = build_inventory(out.run.model);
  out.explanation = explain(out.run.model, out.inventory, out.run.config, out.hardware);
  return true;
}

}  // namespace fivefold
