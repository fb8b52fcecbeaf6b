#include "cli/command.h"

namespace fivefold {
namespace {

constexpr Command kCommands[] = {
    {"plan", "The layouts of a run, ranked, with the five-step decision behind the best", add_plan_command},
    {"explain", "One configuration in full: memory, communication and time, with their formulas", add_explain_command},
    {"train", "Run a configuration, or go on with a run", add_train_command},
    {"check", "The same numbers under every layout: compare with one rank and a stored reference", add_check_command},
    {"reconcile", "Plan against run: every difference with its bound and its cause; the acceptance figures",
     add_reconcile_command},
    {"doctor",
     "What is wrong with a run: out of memory, slow, or scaling badly, as an ordered checklist with its numbers",
     add_doctor_command},
    {"validate", "Published runs of other frameworks beside what is predicted: the error of each source",
     add_validate_command},
    {"export", "A configuration as the files of another framework", add_export_command},
    {"import", "A launch script or configuration of another framework, read and explained", add_import_command},
    {"calibrate", "Measure this machine: the hardware file that predicted times come from", add_calibrate_command},
    {"convert", "Weights of a checkpoint, or a GGUF file, as a Hub folder of safetensors", add_convert_command},
    {"generate", "Continue a text with trained weights", add_generate_command},
};

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace fivefold
