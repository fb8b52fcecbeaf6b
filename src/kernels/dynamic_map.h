// The dynamic 8-bit maps: 256 values in [-1, 1] (signed) or [0, 1] (unsigned) that lie evenly within each of seven
// decades, with twice as many values from one decade to the next, so that small numbers keep their magnitude and large
// ones their digits (Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022). A block of numbers is
// stored as codes into a map and its largest magnitude (absmax).
//
// Decade d = 0..6 spans 10^(d-6) x [0.1, 1], cut into 2^d (signed, for each sign) or 2^(d+1) (unsigned) equal parts
// whose middles are values; 0 and 1 complete the map. Code 127 of the signed map and code 0 of the unsigned are 0, code
// 255 of both is 1; there is no -1. Smallest positive values: 5.5e-7 and 3.25e-7; half of that rounds to 0.
// Thread-safe: everything is constant after the first call.
#pragma once

#include <array>
#include <cstdint>

namespace fivefold::kernels {

enum class DynamicMapKind : uint8_t { kSigned, kUnsigned };

// Ascending, by code.
const std::array<float, 256>& dynamic_map(DynamicMapKind kind);

// Note [Nearest code]
// Which value is nearest is a question of the midpoints between neighbours. The upper 16 bits of |x| (sign, exponent,
// seven bits of significand) name a bin that is narrower than the distance of any two midpoints, so a bin holds at most
// one: a table gives the code at the bin's lower end and the lower 16 bits of the midpoint, and one comparison of the
// lower 16 bits of |x| decides. On a midpoint the lower code is taken. Below 2^-23 there is no midpoint.
struct DynamicCodeTable {
  static constexpr uint32_t kFirstBin = (127u - 23u) << 7;  // upper bits of 2^-23
  static constexpr uint32_t kNumBins = (23u << 7) + 1;      // up to and with 1.0
  // By bin, those of negative x after those of the others: code << 16 | threshold. The code is one further from zero
  // when the lower 16 bits of |x| are above the threshold.
  std::array<uint32_t, 2 * kNumBins> bins;
};
const DynamicCodeTable& dynamic_code_table(DynamicMapKind kind);

// codes[i] = code nearest to values[i] / absmax for blocks of `block` elements (the last may be shorter); absmax
// [div_ceil(n, block)] is written too. A block of zeros gets the code of 0. REQUIRES: finite values; none below zero
// for the unsigned map.
void dynamic_quantise(DynamicMapKind kind, const float* values, int64_t n, int64_t block, uint8_t* codes, float* absmax,
                      int num_threads);
// values[i] = map[codes[i]] absmax[i / block].
void dynamic_dequantise(DynamicMapKind kind, const uint8_t* codes, const float* absmax, int64_t n, int64_t block,
                        float* values, int num_threads);

}  // namespace fivefold::kernels
