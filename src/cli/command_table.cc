#include "cli/command.h"

namespace fivefold {
namespace {

constexpr Command kCommands[] = {
    {"explain", "One configuration in full: memory, communication and time, with their formulas", add_explain_command},
    {"train", "Run a configuration, or go on with a run", add_train_command},
    {"check", "The same numbers under every layout: compare with one rank and a stored reference", add_check_command},
};

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace fivefold
