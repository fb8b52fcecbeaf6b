// Goodput: what of a run's time is left when GPUs fail: the stall of each checkpoint, the work that is lost since the
// last one, and the restart. The interval is Young's (Young, "A first order approximation to the optimum checkpoint
// interval", 1974): sqrt(2 x stall x time between failures). docs/planning.md#goodput. Pure functions.
#pragma once

#include <cstdint>

namespace fivefold {

// Unexpected interruptions per GPU-hour: 419 in 54 days on 16,384 H100s (Llama Team, "The Llama 3 Herd of Models",
// 2024, section 3.3.4).
inline constexpr double kFailuresPerGpuHour = 419.0 / (54 * 24 * 16384.0);
// Assumed: bytes/s that a node writes to the file system, and the time from a failure to the first step after it.
inline constexpr double kCheckpointBytesPerS = 2e9, kRestartS = 600;

struct Goodput {
  double failure_every_s = 0;     // mean time between failures of the whole run
  double stall_s = 0;             // of a checkpoint that everything waits for
  double checkpoint_every_s = 0;  // Young's interval
  double share = 1;               // of the time that makes progress
};
// `state_bytes`: of a checkpoint in all. REQUIRES: gpus and nodes above zero.
Goodput goodput(int64_t gpus, int64_t nodes, double state_bytes);

}  // namespace fivefold
