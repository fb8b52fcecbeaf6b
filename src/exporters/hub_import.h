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

// What axolotl names differently and means alike.
void read_optimizer_state(ImportSheet& sheet, const std::string& optimizer);
// REQUIRES: optimizer.lr is set.
void read_hub_schedule(ImportSheet& sheet, const std::string& name, const nlohmann::json& arguments);
void read_output_folder(ImportSheet& sheet, ForeignSettings& settings);

}  // namespace fivefold
