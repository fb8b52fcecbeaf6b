#include "reconcile/step_part.h"

#include <iterator>

namespace fivefold {
namespace {

constexpr std::string_view kNames[] = {
    "forward",         "recompute",          "head",        "backward", "gradients", "optimizer",
    "exposed_gathers", "exposed_reductions", "token_count", "between",  "pipeline"};
static_assert(std::size(kNames) == kNumStepParts);

}  // namespace

std::string_view to_string(StepPart part) { return kNames[static_cast<size_t>(part)]; }

StepPart part_of(Opcode op) {
  switch (op) {
    case Opcode::kCountTokens:
    case Opcode::kWaitCount:
      return StepPart::kTokenCount;
    case Opcode::kForward:
      return StepPart::kForward;
    case Opcode::kRecompute:
      return StepPart::kRecompute;
    case Opcode::kLoss:
      return StepPart::kHead;
    case Opcode::kBackward:
    case Opcode::kBackwardInput:
    case Opcode::kBackwardWeight:
      return StepPart::kBackward;
    case Opcode::kAccumulateGrads:
    case Opcode::kSumPartialGrads:
    case Opcode::kGradNorm:
      return StepPart::kGradients;
    case Opcode::kOptimizerStep:
      return StepPart::kOptimizer;
    case Opcode::kWaitParameters:
    case Opcode::kUnshard:
    case Opcode::kWaitUnshard:
    case Opcode::kReshard:
    case Opcode::kGatherParameters:
      return StepPart::kExposedGathers;
    case Opcode::kSendActivations:
    case Opcode::kRecvActivations:
    case Opcode::kSendGradients:
    case Opcode::kRecvGradients:
    case Opcode::kWaitSend:
      return StepPart::kPipeline;
    case Opcode::kAllocateGrads:
    case Opcode::kReduceGrads:
    case Opcode::kWaitReduce:
      return StepPart::kExposedReductions;
  }
  FIVEFOLD_CHECK(false);
}

bool computes(StepPart part) {
  return part != StepPart::kExposedGathers && part != StepPart::kExposedReductions && part != StepPart::kTokenCount &&
         part != StepPart::kPipeline && part != StepPart::kBetween;
}

std::optional<Opcode> parse_opcode(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(Opcode::kGatherParameters); ++i)
    if (to_string(static_cast<Opcode>(i)) == name) return static_cast<Opcode>(i);
  return std::nullopt;
}

}  // namespace fivefold
