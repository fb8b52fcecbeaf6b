// Settings of a run over transformers' Trainer, gathered from a script and the files that it names.
#pragma once

#include <string>
#include <vector>

#include "exporters/imported_run.h"
#include "exporters/shell_script.h"

namespace fivefold {

struct HubFiles {
  ForeignSettings arguments;   // of the program
  ForeignSettings accelerate;  // accelerate's file and the flags of its launcher
  ForeignSettings deepspeed;   // DeepSpeed's file
  std::string program, where;
  std::vector<std::string> positional;  // the program's words that are no flags
  std::optional<int64_t> ranks;

  bool is_trl() const;
  // Reads a file that the script names; an error on `sheet` when it cannot be read.
  void add_companion(ImportSheet& sheet, const ShellScript& script, ForeignSettings& into, const std::string& name,
                     const std::string& where);
  void read_fsdp_config(ImportSheet& sheet, const std::string& name, const std::string& where,
                        ForeignSettings& into) const;
};

HubFiles read_hub_script(ImportSheet& sheet, std::string_view text, const std::string& where);
void read_hub_run(ImportSheet& sheet, HubFiles files);

// Optimizer, schedule, length and names of the run.
void read_hub_training(ImportSheet& sheet, HubFiles& files);

}  // namespace fivefold
