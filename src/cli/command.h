// Command: one verb of the program. The table of commands (command_table.cc) is all that main() knows; a command is a
// file *_command.cc with one add function, and a line in the table.
#pragma once

#include <functional>
#include <span>
#include <string_view>

namespace CLI {
class App;
}

namespace fivefold {

// What the process returns; the meaning of each is part of the product.
enum class ExitCode : int {
  kDone = 0,
  kBug = 1,
  kBadInput = 2,
  kDoesNotFit = 3,
  kRunFailed = 4,
  kOutsideBound = 5,  // a prediction or acceptance figure
};

// Runs a command whose options were parsed.
using RunCommand = std::function<ExitCode()>;

struct Command {
  std::string_view name;
  std::string_view summary;
  RunCommand (*add)(CLI::App& app);  // adds the command's options to `app`
};

// In the order of `fivefold --help`.
std::span<const Command> commands();

RunCommand add_plan_command(CLI::App& app);
RunCommand add_explain_command(CLI::App& app);
RunCommand add_train_command(CLI::App& app);
RunCommand add_check_command(CLI::App& app);
RunCommand add_reconcile_command(CLI::App& app);
RunCommand add_calibrate_command(CLI::App& app);
RunCommand add_convert_command(CLI::App& app);
RunCommand add_generate_command(CLI::App& app);
RunCommand add_validate_command(CLI::App& app);
RunCommand add_doctor_command(CLI::App& app);
RunCommand add_export_command(CLI::App& app);
RunCommand add_import_command(CLI::App& app);

// The whole program: parses, runs, prints errors, returns the exit code.
int run_cli(int argc, const char* const* argv);

}  // namespace fivefold
