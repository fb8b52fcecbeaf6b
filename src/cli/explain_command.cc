// fivefold explain CONFIG: one configuration in full.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/table.h"
#include "base/text.h"
#include "cli/common_options.h"
#include "planner/ledger.h"

namespace fivefold {
namespace {

struct ExplainOptions {
  CommonOptions common;
};

std::string memory_table(const Ledger& ledger) {
  Table table({"account", "between steps", "at the peak", "own peak"});
  for (int i = 0; i < kNumAccounts; ++i) {
    const auto account = static_cast<Account>(i);
    if (ledger.peak[account] == 0) continue;
    table.add_row({std::string(to_string(account)), format_bytes(ledger.persistent[account]),
                   format_bytes(ledger.at_peak[account]), format_bytes(ledger.peak[account])});
  }
  table.add_rule();
  table.add_row({"sum", format_bytes(ledger.persistent.total()), format_bytes(ledger.peak_total), ""});
  return table.to_string(2);
}

ExitCode run_explain(const ExplainOptions& options) {
  apply_common_options(options.common);
  std::vector<Error> errors;
  LoadedRun run;
  if (!load_run(options.common, run, errors)) {
    print_errors(errors);
    return ExitCode::kBadInput;
  }
  const Inventory inventory = build_inventory(run.model);
  const Ledger ledger = predict_memory(run.model, inventory, run.config, 1);
  print(painted(Paint::kHeading, "Memory of a rank") + "\n" + memory_table(ledger));
  return ExitCode::kDone;
}

}  // namespace

RunCommand add_explain_command(CLI::App& app) {
  auto options = std::make_shared<ExplainOptions>();
  add_common_options(app, options->common);
  return [options] { return run_explain(*options); };
}

}  // namespace fivefold
