#include "cli/command.h"

namespace fivefold {
namespace {

constexpr Command kCommands[] = {
    {"explain", "One configuration in full: memory, communication and time, with their formulas", add_explain_command},
};

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace fivefold
