#include "reconcile/framework_prediction.h"

#include <algorithm>

#include "base/integer.h"
#include "planner/profiles/device_need.h"
#include "planner/profiles/framework_config.h"

namespace fivefold {
namespace {

// Reserved over allocated where both were logged: 1.028 to 1.069 (SimuMax's 30 runs of Megatron-LM on B200).
constexpr double kReservedOverAllocated = 1.05;

}  // namespace

Result<FrameworkPrediction> predict_framework(const ModelSpec& model, const RunConfig& config,
                                              const HardwareSpec& hardware) {
  FrameworkPrediction prediction{.model = model, .config = config, .hardware = hardware};
  if (prediction.config.batch.global == 0)
    prediction.config.batch.global = config.batch.micro * static_cast<int64_t>(config.parallel.dp);
  FIVEFOLD_ASSIGN(prediction.run, framework_run(model, prediction.config, hardware));
  prediction.memory = profile_memory(prediction.run);
  prediction.need = needed_bytes(prediction.memory);
  Result<FrameworkTime> time = framework_time(prediction.run, hardware);
  if (time.ok())
    prediction.time = *std::move(time);
  else
    prediction.no_time = time.error().message();
  return prediction;
}

int64_t predicted_figure(FrameworkRun run, LoggedMemoryKind kind, ReportedRank reported) {
  run.reported = reported;
  if (kind == LoggedMemoryKind::kBetweenSteps) return profile_memory(run).static_bytes;
  const bool process = kind == LoggedMemoryKind::kProcess, reserved = kind == LoggedMemoryKind::kReserved;
  switch (run.framework) {
    case Framework::kHf:
      run.hf.figure = process ? MemoryFigure::kProcess : reserved ? MemoryFigure::kReserved : MemoryFigure::kAllocated;
      return profile_memory(run).peak().bytes();
    case Framework::kFsdp2:
    case Framework::kDeepspeed:
      // fsdp2 was derived from torchtitan's reserved bytes.
      run.sharding.counts_process = process;
      return profile_memory(run).peak().bytes();
    default:
      break;
  }
  const int64_t allocated = profile_memory(run).peak().bytes();
  if (kind == LoggedMemoryKind::kAllocated) return allocated;
  const auto cached = static_cast<int64_t>(static_cast<double>(allocated) * kReservedOverAllocated);
  return process ? cached + kOutsideAllocator : cached;
}

int64_t stage_of_rank(const FrameworkPrediction& prediction, int64_t rank) {
  const int64_t of_stage = div_exact(prediction.world(), prediction.run.pp);
  return std::clamp<int64_t>(div_floor(rank, of_stage), 0, prediction.run.pp - 1);
}

}  // namespace fivefold
