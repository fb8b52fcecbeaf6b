// StepPart: what an instruction of a step spends time on. Plan and record are grouped by the same function, so that the
// parts of one can be held against those of the other. Pure functions, thread-safe.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "schedule/program.h"

namespace fivefold {

enum class StepPart : uint8_t {
  kForward,
  kRecompute,
  kHead,  // final norm, logits, loss and their backward
  kBackward,
  kGradients,  // accumulation, clipping norm
  kOptimizer,
  kExposedGathers,     // of parameters: issuing them and waiting for them
  kExposedReductions,  // of gradients: issuing them and waiting for them
  kTokenCount,
  kBetween,   // between instructions
  kPipeline,  // transfers between pipeline stages, and waiting for them
};
inline constexpr int kNumStepParts = 11;
std::string_view to_string(StepPart part);

StepPart part_of(Opcode op);
// Computing, as opposed to waiting for other ranks.
bool computes(StepPart part);
// Inverse of to_string(Opcode).
std::optional<Opcode> parse_opcode(std::string_view name);

struct PartSeconds {
  std::array<double, kNumStepParts> seconds{};

  double& operator[](StepPart part) { return seconds[static_cast<size_t>(part)]; }
  double operator[](StepPart part) const { return seconds[static_cast<size_t>(part)]; }
};

}  // namespace fivefold
