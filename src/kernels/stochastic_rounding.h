// Stochastic rounding of fp32 to bf16: up with a probability of how far the value lies above the lower neighbour, so
// that the mean of many roundings is the value. A bf16 weight without fp32 master can then take updates that are
// smaller than the distance to its neighbour (2^-8 of it), which rounding to nearest drops every time.
//
// The random bits are a pure function of (seed, stream, element): the 16 bits of element i are the half i % 2 (low
// first) of word (i % 8) / 2 of the Philox block i / 8 (base/philox.h). Whoever cuts a range elsewhere draws the same.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "kernels/clones.h"
#include "kernels/element.h"

namespace fivefold::kernels {

// Elements of a range, from `begin` up to the next run's, take the stream's elements from `position` on.
struct StreamRun {
  int64_t begin = 0;
  int64_t position = 0;
};

// Where a range draws from.
struct RoundingBits {
  uint64_t seed = 0;
  uint64_t stream = 0;
  int64_t first = 0;                // the stream's element that the range's element 0 takes
  std::span<const StreamRun> runs;  // when given, instead of `first`: ascending by `begin`; before the first run: any
};

// One of the two bf16 neighbours of a finite value: the upper one (in magnitude) for random16 >= 2^16 (1 - distance to
// the lower one). Exact bf16 values stay. Infinities stay, a NaN stays a quiet NaN of its sign. REQUIRES: random16 <
// 2^16.
FIVEFOLD_INLINE BFloat16 round_stochastically(float value, uint32_t random16) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  const uint32_t quiet_nan = value != value ? 0x40u : 0u;
  const uint32_t rounded = (bits + random16) >> 16;
  return BFloat16{static_cast<uint16_t>(finite ? rounded : (bits >> 16) | quiet_nan)};
}

// Elements that draw_halves draws at most at a time.
inline constexpr int64_t kRandomChunk = 1024;
inline constexpr int64_t kRandomHalves = kRandomChunk + 16;

// Draws the bits of elements [begin, begin + n) of a range, n <= kRandomChunk, into `halves` [kRandomHalves]; returns a
// pointer to those of element `begin`.
const uint16_t* draw_halves(const RoundingBits& bits, int64_t begin, int64_t n, uint16_t* halves);

}  // namespace fivefold::kernels
