// Internal to src/kernels: what the optimizer steps share, element by element, to be inlined into cloned functions.
#pragma once

#include <cmath>

#include "kernels/clones.h"
#include "kernels/optimizer.h"
#include "kernels/parallel.h"
#include "kernels/stochastic_rounding.h"

namespace fivefold::kernels {

// What does not depend on the element, computed in fp64 and rounded once.
struct AdamWFactors {
  float grad_scale;
  float decay;  // 1 - lr weight_decay
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;       // lr / (1 - beta1^step)
  float inv_sqrt_bias2;  // 1 / sqrt(1 - beta2^step)
  float eps;
};

template <class G, class S>
AdamWFactors adamw_factors(const AdamW<G, S>& a) {
  FIVEFOLD_CHECK(a.step >= 1);
  const double step = static_cast<double>(a.step);
  return {
      .grad_scale = a.grad_scale,
      .decay = static_cast<float>(1 - a.lr * a.weight_decay),
      .one_minus_beta1 = static_cast<float>(1 - a.beta1),
      .beta2 = static_cast<float>(a.beta2),
      .one_minus_beta2 = static_cast<float>(1 - a.beta2),
      .step_size = static_cast<float>(a.lr / (1 - std::pow(a.beta1, step))),
      .inv_sqrt_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(a.beta2, step))),
      .eps = static_cast<float>(a.eps),
  };
}

// One number each: a struct of two, returned inside a simd loop, keeps GCC from vectorising it.
FIVEFOLD_INLINE float next_m(const AdamWFactors& f, float m, float g) { return m + f.one_minus_beta1 * (g - m); }
FIVEFOLD_INLINE float next_v(const AdamWFactors& f, float v, float g) {
  return f.beta2 * v + f.one_minus_beta2 * g * g;
}
FIVEFOLD_INLINE float next_weight(const AdamWFactors& f, float weight, float m, float v) {
  const float denominator = std::sqrt(v) * f.inv_sqrt_bias2 + f.eps;
  return weight * f.decay - f.step_size * (m / denominator);
}

// Note [Weights of an optimizer step].
enum class Weights : uint8_t { kFloat32, kFloat32AndBFloat16, kBFloat16 };

template <Weights kWeights>
FIVEFOLD_INLINE float read_weight(const float* param, const BFloat16* param_bf16, int64_t i) {
  if constexpr (kWeights == Weights::kBFloat16) {
    return to_float(param_bf16[i]);
  } else {
    return param[i];
  }
}

// random[0]: the bits of element `begin`.
template <Weights kWeights>
FIVEFOLD_INLINE void write_weight(float* param, BFloat16* param_bf16, int64_t i, float value, const uint16_t* random,
                                  int64_t begin) {
  if constexpr (kWeights == Weights::kBFloat16) {
    param_bf16[i] = round_stochastically(value, random[i - begin]);
  } else {
    param[i] = value;
    if constexpr (kWeights == Weights::kFloat32AndBFloat16) param_bf16[i] = from_float<BFloat16>(value);
  }
}

// Cuts [0, a.n) into tasks of block_size elements for the threads, and calls f.operator()<Weights>(begin, end, random)
// for each, or for portions of kRandomChunk of it with their random bits.
template <class Step, class F>
void for_each_weight_range(const Step& a, int64_t block_size, const F& f) {
  FIVEFOLD_CHECK(a.param != nullptr || a.param_bf16 != nullptr || a.n == 0);
  for_each_block(a.n, block_size, a.num_threads, [&](int64_t, int64_t begin, int64_t end) {
    if (a.param != nullptr) {
      a.param_bf16 != nullptr ? f.template operator()<Weights::kFloat32AndBFloat16>(begin, end, nullptr)
                              : f.template operator()<Weights::kFloat32>(begin, end, nullptr);
      return;
    }
    uint16_t halves[kRandomHalves];
    for (int64_t from = begin; from < end; from += kRandomChunk) {
      const int64_t to = std::min(end, from + kRandomChunk);
      const uint16_t* random = draw_halves(a.rounding, from, to - from, halves);
      f.template operator()<Weights::kBFloat16>(from, to, random);
    }
  });
}

}  // namespace fivefold::kernels
