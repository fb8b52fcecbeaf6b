// The switches of FrameworkRun by name: NAME=VALUE as [framework] switches = [...] of a configuration has them, and
// what each is set to, for tables. One table serves reading, writing and hints. Pure functions, thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "planner/profiles/framework_run.h"

namespace fivefold {

// A switch as a table shows it.
struct SwitchValue {
  std::string name, value;
  bool assumed = true;  // nobody set it: the framework's default
};

// "cross_entropy=native_fused". Errors ("framework.switches"): no such switch of this framework, with the nearest; a
// value that it does not take, with those that it does.
Status set_switch(FrameworkRun& run, std::string_view setting);
// All switches of the run's framework.
std::vector<SwitchValue> switch_values(const FrameworkRun& run);
// Those that were set, as set_switch() takes them.
std::vector<std::string> switch_settings(const FrameworkRun& run);

}  // namespace fivefold
