#include "base/check.h"
#include "planner/profiles/framework_profile.h"

namespace fivefold {

ProfileMemory fsdp2_memory(const FrameworkRun&) { return {.phases = {{}}, .static_bytes = 0, .assumed = {}}; }

}  // namespace fivefold
