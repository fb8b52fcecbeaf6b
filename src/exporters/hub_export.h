// What the targets over transformers' Trainer share (trl, accelerate, deepspeed): the arguments of TRL's sft script.
#pragma once

#include "exporters/export_sheet.h"

namespace fivefold {

// How the states are held, which decides what the Trainer's arguments have to say.
enum class HubSharding : uint8_t { kNone, kFsdp, kDeepspeed };

// An error for an axis that the target does not have, with the targets that do.
Status check_axes(const ExportedPlan& plan, std::initializer_list<std::string_view> has);

// Model, batch, precision, recompute, optimizer, schedule and method. REQUIRES: check_axes().
FlagGroup trl_flags(const ExportedPlan& plan, HubSharding sharding, ExportSheet& sheet, SwitchSheet& switches);

// The learning-rate schedule by transformers' name, and what that name needs beside it (JSON; empty: nothing).
struct HubSchedule {
  std::string name, arguments;
};
HubSchedule hub_schedule(const RunConfig& config);

// transformers' name of the optimizer; notes for what has none.
std::string hub_optimizer(const RunConfig& config, ExportSheet& sheet);

// What the Trainer computes and keeps, as notes and said keys.
void say_precision(const ExportedPlan& plan, HubSharding sharding, ExportSheet& sheet);
// Of [method] whatever has no flag: a folder to start from.
void say_method(const ExportedPlan& plan, ExportSheet& sheet);
void say_framework(const ExportedPlan& plan, std::initializer_list<Framework> written, ExportSheet& sheet,
                   const SwitchSheet& switches);

// The level of ZeRO that FSDP has for the plan's, noted when it is another; 0: data parallelism alone.
int fsdp_level(const ExportedPlan& plan, ExportSheet& sheet);

// A script that starts TRL's sft with these arguments.
std::string trl_script(const ExportedPlan& plan, ForeignTarget target, const std::string& launch,
                       const FlagGroup& flags);

}  // namespace fivefold
