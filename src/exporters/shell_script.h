// Reads a launch script as far as it states a command line: variables, arrays, quotes, line continuations, arithmetic,
// simple conditions and here-documents. Nothing is run: what would need running ($(hostname), a test of a file) has no
// value, and a variable that the script does not set stays as it is written ("$NODES"), so that a message about it can
// name it. Both are listed. Thread-safe: no state.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fivefold {

struct ShellCommand {
  std::vector<std::string> words;
  std::vector<std::string> places;  // of each word: "run.sh:12"
};

struct ShellScript {
  std::vector<ShellCommand> commands;            // those that would run, in order
  std::map<std::string, std::string> variables;  // as they are at the end; arrays joined by spaces
  std::map<std::string, std::string> documents;  // here-documents that go into a file, by its name
  std::map<std::string, std::string> scheduler;  // "#SBATCH --nodes=4": {"nodes", "4"}
  std::vector<std::string> unset;                // variables without a value, in order of first use
};

// `environment`: variables from outside, also "1", "2" for the script's arguments. Errors ("FILE:LINE"): a quote, a
// bracket or a here-document that does not end, more text than a script has.
Result<ShellScript> read_shell_script(std::string_view text, const std::string& where,
                                      const std::map<std::string, std::string>& environment);

}  // namespace fivefold
