// Internal to src/kernels: quantisation of one block against a dynamic map (dynamic_map.h), to be inlined into cloned
// functions.
#pragma once

#include <bit>

#include "kernels/clones.h"
#include "kernels/dynamic_map.h"

namespace fivefold::kernels {

// The smallest divisor of a block: below it the reciprocal would be infinite.
inline constexpr float kSmallestAbsmax = 1e-38f;

// Nearest code of x, |x| <= 1 (and no NaN). Note [Nearest code].
FIVEFOLD_INLINE int32_t dynamic_code(const uint32_t* bins, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 31;
  uint32_t magnitude = bits & 0x7fffffffu;
  magnitude = magnitude < (DynamicCodeTable::kFirstBin << 16) ? (DynamicCodeTable::kFirstBin << 16) : magnitude;
  const uint32_t one = std::bit_cast<uint32_t>(1.0f);
  magnitude = magnitude > one ? one : magnitude;
  const uint32_t bin = (magnitude >> 16) - DynamicCodeTable::kFirstBin + sign * DynamicCodeTable::kNumBins;
  const uint32_t entry = bins[static_cast<int32_t>(bin)];
  const int32_t beyond = (magnitude & 0xffffu) > (entry & 0xffffu) ? 1 : 0;
  return static_cast<int32_t>(entry >> 16) + (sign != 0 ? -beyond : beyond);
}

FIVEFOLD_INLINE float block_absmax(const float* values, int64_t n) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::bit_cast<float>(std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

FIVEFOLD_INLINE void quantise_block(const uint32_t* bins, const float* values, int64_t n, float absmax,
                                    uint8_t* codes) {
  const float inverse = 1.0f / (absmax > kSmallestAbsmax ? absmax : kSmallestAbsmax);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(dynamic_code(bins, values[i] * inverse));
}

}  // namespace fivefold::kernels
