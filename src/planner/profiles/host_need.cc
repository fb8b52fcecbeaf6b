#include "planner/profiles/host_need.h"

#include <algorithm>

namespace fivefold {

int64_t host_bytes_of_node(const ProfileMemory& memory, int64_t ranks_of_node) {
  const HostMemory& host = memory.host;
  return std::max(ranks_of_node * host.step.bytes(), ranks_of_node * host.start.bytes() + host.start_of_node);
}

HostVerdict host_verdict(const ProfileMemory& memory, int64_t ranks_of_node, int64_t host_bytes) {
  const int64_t needed = host_bytes_of_node(memory, ranks_of_node);
  if (needed > host_bytes) return HostVerdict::kDoesNotFit;
  // Only tensors that are kept on the host are pinned; every rank's first line is its process.
  const HostMemory& host = memory.host;
  const int64_t process = host.step.lines.front().bytes;
  const auto pinned =
      static_cast<int64_t>(kPinnedFactor * static_cast<double>(ranks_of_node * (host.step.bytes() - process)));
  return pinned + ranks_of_node * process > host_bytes ? HostVerdict::kAtRisk : HostVerdict::kFits;
}

}  // namespace fivefold
