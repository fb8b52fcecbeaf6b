// What the user of another framework should know about a run: what its settings cost beside what they save, what its
// precision gives up, what start-up and the host need. Pure functions, thread-safe.
#pragma once

#include <vector>

#include "base/result.h"
#include "planner/profiles/framework_run.h"
#include "spec/hardware.h"

namespace fivefold {

// `memory`: profile_memory(run). A hint is empty where nothing has to be done. In the order of where they are felt:
// start-up, host, states, gradients.
std::vector<Error> run_notes(const FrameworkRun& run, const ProfileMemory& memory, const HardwareSpec& hardware);

}  // namespace fivefold
