// Time of a step in another framework: the step of the same layout replayed as the planner replays fivefold's own
// (planner/cost.h), with what the framework does otherwise: how many bytes its kernels move between products, how fast
// its host launches them, and how much of the data-parallel traffic it hides. Constants and their sources:
// docs/profiles.md. Pure functions, thread-safe.
#pragma once

#include "base/result.h"
#include "planner/profiles/framework_run.h"
#include "planner/step_replay.h"
#include "spec/hardware.h"

namespace fivefold {

// What a framework's time has beside the device's. Seconds a layer are those of a forward pass; a backward has twice.
struct FrameworkPace {
  double elementwise_factor = 1;  // bytes between products, over those of fused kernels
  double layer_host_s = 0, tensor_host_s = 0, pipeline_host_s = 0;  // least of a layer; more with tp > 1, with pp > 1
  double hidden_gradients = 0;  // share of the data-parallel exchange that computation hides
};
FrameworkPace framework_pace(Framework framework);

struct FrameworkTime {
  StepCost step;            // of the replica's microbatches
  double exchange_s = 0;    // of gradients and weights over dp that is not hidden; ZeRO levels 0 to 2
  double tokens_per_s = 0;  // of one GPU
};

// Errors: what the planner does not replay (expert parallelism, split layers other than attention and a dense MLP), a
// layout that is none.
Result<FrameworkTime> framework_time(const FrameworkRun& run, const HardwareSpec& hardware);

}  // namespace fivefold
