#include "planner/profiles/device_need.h"

#include <algorithm>

#include "base/check.h"

namespace fivefold {

int64_t needed_bytes(const ProfileMemory& memory) {
  FIVEFOLD_CHECK(!memory.phases.empty());
  int64_t most = 0;
  for (const ProfilePhase& phase : memory.phases) {
    const double share = phase.fragments ? kFragmentedShare : 0.0;
    most = std::max(most, static_cast<int64_t>(static_cast<double>(phase.bytes()) * (1 + share)));
  }
  return most + kOutsideAllocator;
}

int64_t start_bytes(const ProfileMemory& memory) { return memory.start.bytes() + kOutsideAllocator; }

}  // namespace fivefold
