// The command of a launch script that starts the training: what launches it (torchrun, accelerate, deepspeed, srun)
// with how many ranks, the program, and the program's arguments.
#pragma once

#include <optional>
#include <string>

#include "exporters/foreign_settings.h"
#include "exporters/shell_script.h"

namespace fivefold {

struct LaunchCommand {
  std::string launcher;  // "torchrun", "accelerate", "deepspeed"; empty: none
  std::string program;   // "pretrain_gpt.py", "trl.scripts.sft", "axolotl"
  ForeignSettings launcher_settings;
  ForeignSettings arguments;
  std::vector<std::string> positional;  // the program's words that are no flags
  std::string where;                    // of the program
};

// The last command of the script that starts a Python program or a known trainer. Errors: there is none.
Result<LaunchCommand> find_launch(const ShellScript& script, const std::string& where);

// Ranks in all. Nothing: the script does not say, and `missing` says what of it is unknown.
std::optional<int64_t> launched_ranks(LaunchCommand& launch, const ShellScript& script, std::string& missing);

}  // namespace fivefold
