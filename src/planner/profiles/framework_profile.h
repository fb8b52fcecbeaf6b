// Internal to src/planner/profiles: the profile of each framework, and what they share.
#pragma once

#include "planner/profiles/framework_run.h"

namespace fivefold {

ProfileMemory megatron_memory(const FrameworkRun& run);
ProfileMemory nanotron_memory(const FrameworkRun& run);
ProfileMemory fsdp2_memory(const FrameworkRun& run);
ProfileMemory deepspeed_memory(const FrameworkRun& run);
ProfileMemory hf_memory(const FrameworkRun& run);

}  // namespace fivefold
