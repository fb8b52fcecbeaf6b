#include "planner/profiles/framework_run.h"

#include <algorithm>

#include "base/check.h"
#include "planner/profiles/framework_profile.h"
#include "planner/profiles/host_memory.h"

namespace fivefold {

int64_t ProfilePhase::bytes() const {
  int64_t sum = 0;
  for (const ProfileLine& line : lines) sum += line.bytes;
  return sum;
}

const ProfilePhase& ProfileMemory::peak() const {
  FIVEFOLD_CHECK(!phases.empty());
  return *std::ranges::max_element(phases, {}, [](const ProfilePhase& phase) { return phase.bytes(); });
}

ProfileMemory step_memory(const FrameworkRun& run) {
  switch (run.framework) {
    case Framework::kFivefold:
      break;
    case Framework::kMegatron:
      return megatron_memory(run);
    case Framework::kNanotron:
      return nanotron_memory(run);
    case Framework::kFsdp2:
      return fsdp2_memory(run);
    case Framework::kDeepspeed:
      return deepspeed_memory(run);
    case Framework::kHf:
      return hf_memory(run);
  }
  FIVEFOLD_CHECK(false);
}

ProfileMemory profile_memory(const FrameworkRun& run) {
  ProfileMemory memory = step_memory(run);
  add_host_memory(run, memory);
  return memory;
}

}  // namespace fivefold
