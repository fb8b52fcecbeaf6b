// What calibrate asks the engine to time, and what it gets: seconds, nothing derived. What to ask for and what follows
// from the answers is the program's (cli/calibration.h). Torch-free plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "spec/hardware.h"
#include "spec/model.h"
#include "spec/run_config_resolve.h"

namespace fivefold {

// A matrix product [m, k] x [k, n] in one of the three ways in which a linear uses it; operands change from call to
// call, so that they come from memory or the last-level cache.
enum class GemmUse : uint8_t { kForward, kInputGrad, kWeightGrad };
struct GemmTask {
  GemmUse use = GemmUse::kForward;
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kFloat32;
};

// Training steps on random tokens, of each rank for itself.
struct StepTask {
  ModelSpec model;
  ResolvedConfig config;  // one rank; parallel.threads as in the request
  int steps = 5;          // timed, after one that is not
};

// Of one operation in one pass, rebuilding included. `matrix`: of its matrix products, `rest`: of what else it does.
struct OperationSeconds {
  int unit = 0, operation = 0;
  Pass pass = Pass::kForward;
  double matrix = 0, rest = 0;
};
struct StepSeconds {
  std::vector<OperationSeconds> operations;
  std::vector<double> optimizer, accumulate;  // by unit; 0 where the step has no such instruction
  double sum_of_squares = 0;                  // over the gradients of all units
  double between_instructions = 0;            // of the step outside its instructions, loading its tokens included
};

// A collective over all ranks on a full fp32 tensor of `bytes`, issued as training does and waited for at once.
struct CollectiveTask {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t bytes = 0;
};

// Every task is done by `ranks` ranks of `threads` threads at the same time.
struct MeasureRequest {
  int ranks = 1, threads = 1;
  std::vector<GemmTask> gemms;
  std::vector<StepTask> steps;
  std::vector<CollectiveTask> collectives;  // REQUIRES: ranks > 1
  double seconds_per_task = 0.02;           // of repetitions, at least three
  std::function<void()> on_task;            // after each task, on the first rank's thread
};

// In the order of the request: the fastest tenth of the repetitions, each as long as its slowest rank.
struct Measurements {
  std::vector<double> gemms, collectives;
  std::vector<StepSeconds> steps;
  double copy_bytes_per_s = 0;  // read and written by all ranks, out of cache
  double overlap_share = 0;     // of a collective's time by which computing meanwhile got longer; ranks > 1
  // A product of [512, 512] matrices in fp32 on each thread's own, before and after everything else.
  double reference_before_s = 0, reference_after_s = 0;
  double cpu_share = 1;  // processor time of the reference / its wall time: below 1 the machine has other work
};

}  // namespace fivefold
