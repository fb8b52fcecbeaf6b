#include <CLI/CLI.hpp>
#include <csignal>
#include <exception>
#include <string>
#include <vector>

#include "base/text.h"
#include "cli/command.h"
#include "cli/output.h"

namespace fivefold {
namespace {

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  return names;
}

// CLI11 calls a misspelt command an unexpected argument; the nearest one says more.
bool is_unknown_command(const std::string& word) {
  if (word.empty() || word.front() == '-') return false;
  for (const Command& command : commands())
    if (command.name == word) return false;
  return true;
}

ExitCode parse_and_run(int argc, const char* const* argv) {
  if (argc > 1 && is_unknown_command(argv[1])) {
    print_errors(
        {{"command", "unknown command \"" + std::string(argv[1]) + "\"", name_hint(argv[1], command_names())}});
    return ExitCode::kBadInput;
  }
  CLI::App app("Plans a training run of a language model, runs it, and holds the run against the plan.", "fivefold");
  app.set_version_flag("--version", "fivefold " FIVEFOLD_VERSION);
  app.require_subcommand(1);
  RunCommand chosen;
  for (const Command& command : commands()) {
    CLI::App* sub = app.add_subcommand(std::string(command.name), std::string(command.summary));
    sub->callback([&chosen, run = command.add(*sub)] { chosen = run; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      app.exit(error, text, text);
      print(text.str());
      return ExitCode::kDone;
    }
    print_errors({{"", error.what(),
                   "fivefold " + (argc > 1 && argv[1][0] != '-' ? argv[1] + std::string(" ") : "") + "--help"}});
    return ExitCode::kBadInput;
  }
  return chosen();
}

}  // namespace

int run_cli(int argc, const char* const* argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is seen when output is flushed
  ExitCode code = ExitCode::kDone;
  try {
    code = parse_and_run(argc, argv);
  } catch (const std::exception& error) {
    print_errors({{"", error.what(), ""}});
    code = ExitCode::kRunFailed;
  }
  if (!finish_output()) return static_cast<int>(ExitCode::kRunFailed);
  return static_cast<int>(code);
}

}  // namespace fivefold
