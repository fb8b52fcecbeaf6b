#include "planner/goodput.h"

#include <algorithm>
#include <cmath>

namespace fivefold {

Goodput goodput(int64_t gpus, int64_t nodes, double state_bytes) {
  Goodput result;
  result.failure_every_s = 3600 / (kFailuresPerGpuHour * static_cast<double>(gpus));
  result.stall_s = state_bytes / (kCheckpointBytesPerS * static_cast<double>(nodes));
  result.checkpoint_every_s = std::sqrt(2 * result.stall_s * result.failure_every_s);
  const double lost =
      result.stall_s / result.checkpoint_every_s + (result.checkpoint_every_s / 2 + kRestartS) / result.failure_every_s;
  result.share = std::max(0.0, 1 - lost);
  return result;
}

}  // namespace fivefold
