// Fp8 operands of a linear's products: x, weight and output gradient rounded to fp8 with a scale, as tensors of the
// compute type that hold exactly the numbers an fp8 product multiplies (bit for bit those of kernels/fp8.h: every e4m3
// and e5m2 value, times a power of two, is one of bf16). A product of two of them, scaled back, is what fp8 hardware
// gives up to the order of its fp32 sums. Derivation: docs/engine.md.
//
// Note [Fp8 scales]
//   current   one scale a tensor, from its own largest magnitude, e4m3 for x and weight, e5m2 for the output gradient.
//             A tensor that tensor or context parallelism cuts has one scale: its ranks share the largest magnitude, so
//             that they round as one rank would.
//   delayed   the same formats; the scale comes from the largest magnitude of the last steps, which all ranks share
//   once
//             a step. Before the first step has ended a tensor's own magnitude stands in.
//   block     e4m3; x and gradient in blocks of 128 along the dim that the product sums over, the weight in 128 x 128,
//             each with a scale that is a power of two. Blocks lie within a rank's part: nothing is shared.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/tensors.h"
#include "spec/operations.h"

namespace fivefold {

enum class Fp8Role : uint8_t { kInput, kWeight, kGradient };

// Largest magnitudes of delayed scaling: of this step, and of the last ones. One thread per object.
class Fp8History {
 public:
  // Of the whole model's units, so that all ranks have the same slots.
  Fp8History(int units, int64_t steps) : steps_(steps), current_(static_cast<size_t>(fp8_slots(units)), 0.0f) {}

  // Largest of the last steps; 0: no step has ended that saw the tensor.
  float largest(int linear, Fp8Role role) const;
  void observe(int linear, Fp8Role role, float amax);
  // This step's, to be shared over all ranks before end_step().
  std::span<float> current() { return current_; }
  void end_step();
  // The last steps as text, for checkpoints: "slot:value" of what was seen, a step a line; exact.
  std::string to_text() const;
  void restore(const std::string& text);
  // What an evaluation saw.
  void forget_current() { std::fill(current_.begin(), current_.end(), 0.0f); }

 private:
  size_t slot(int linear, Fp8Role role) const {
    return static_cast<size_t>(linear) * kNumFp8Roles + static_cast<size_t>(role);
  }
  int64_t steps_;
  std::vector<float> current_;
  std::vector<std::vector<float>> past_;  // of the last steps, oldest first
};

// The slot of a unit's operation.
constexpr int fp8_linear(int unit, int operation) { return unit * kFp8OperationsPerUnit + operation; }

namespace ops {

// One scale: `values` times `inverse` is the tensor, rounded.
struct Fp8Tensor {
  at::Tensor values;
  double inverse = 1;
};

float fp8_amax(const at::Tensor& x, int threads);
// Rounds x, which may be `out`. REQUIRES: contiguous, of one shape and type.
double fp8_round(const at::Tensor& x, float amax, Fp8Role role, at::Tensor& out, int threads);
// The dim along which blocks of 128 lie: 1, or 0 for the products that sum over tokens. A weight has square blocks.
void fp8_round_blocks(const at::Tensor& x, Fp8Role role, int dim, at::Tensor& out, int threads);

}  // namespace ops
}  // namespace fivefold
