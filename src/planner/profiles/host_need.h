// What a node's host memory must be for a run to load and to train. Pure functions, thread-safe.
#pragma once

#include "planner/profiles/framework_run.h"

namespace fivefold {

enum class HostVerdict : uint8_t { kFits, kAtRisk, kDoesNotFit };

// Pinned buffers come in powers of two and are copied while they are made; DeepSpeed's own estimate takes 1.5 times the
// tensors. What fits without and not with it is at risk.
inline constexpr double kPinnedFactor = 1.5;

// The larger of start-up and step, of all ranks of a node.
int64_t host_bytes_of_node(const ProfileMemory& memory, int64_t ranks_of_node);
HostVerdict host_verdict(const ProfileMemory& memory, int64_t ranks_of_node, int64_t host_bytes);

}  // namespace fivefold
