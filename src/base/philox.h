// Philox4x32-10: a counter-based random generator (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). Every number is a pure function of (seed, stream, index), so a rank can draw any slice of a
// tensor and every layout draws the same tensor. Not cryptographic.
//
// The functions below key the generator as: key = seed (low word first), counter = {block low, block high, stream low,
// stream high}; a block gives four 32-bit words, the number at `index` uses block index / 4.
// Thread-safe: there is no state.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace fivefold {

// Ten rounds of the bijection on 128 bits; each call is one block.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// A stream's number from its name (a tensor's Hub name, "data order"): 64-bit FNV-1a, offset basis and prime as in
// draft-eastlake-fnv.
constexpr uint64_t random_stream(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// The raw word at `index` of a stream.
uint32_t random_word(uint64_t seed, uint64_t stream, uint64_t index);

// Uniform in [0, 1): the top 24 bits of the word times 2^-24, so every value is exact in fp32.
float random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
// out[i] = random_uniform(seed, stream, first_index + i).
void fill_uniform(uint64_t seed, uint64_t stream, uint64_t first_index, std::span<float> out);

// Standard normal by Box-Muller. A block's words (w0, w1) give the numbers at 4b and 4b + 1, (w2, w3) those at 4b + 2
// and 4b + 3: radius sqrt(-2 ln u), u = (w0 + 1/2) 2^-32, times cos and sin of the angle 2 pi ((w1 + 1/2) 2^-32 - 1/8).
// Computed in fp64 from +, -, *, / and sqrt alone, without fused multiply-add, and rounded once: the same bits on every
// IEEE-754 machine. The fp64 value is within 1e-12 (relative) of the exact transform; |value| <= 6.77.
float random_normal(uint64_t seed, uint64_t stream, uint64_t index);
// out[i] = random_normal(seed, stream, first_index + i).
void fill_normal(uint64_t seed, uint64_t stream, uint64_t first_index, std::span<float> out);

}  // namespace fivefold
