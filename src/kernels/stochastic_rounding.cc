#include "kernels/stochastic_rounding.h"

#include <algorithm>

#include "base/integer.h"

namespace fivefold::kernels {
namespace {

// Multipliers and increments of Philox4x32, as in base/philox.cc; a test holds the two together. Written out here as a
// loop over blocks that is vectorised.
constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

FIVEFOLD_CLONES void philox_blocks(uint64_t seed, uint64_t stream, uint64_t first_block, int64_t num_blocks,
                                   uint32_t* words) {
#pragma omp simd
  for (int64_t b = 0; b < num_blocks; ++b) {
    const uint64_t block = first_block + static_cast<uint64_t>(b);
    uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
    uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * c0;
      const uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * c2;
      c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(product1);
      c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(product0);
      k0 += kWeyl0;
      k1 += kWeyl1;
    }
    words[4 * b] = c0;
    words[4 * b + 1] = c1;
    words[4 * b + 2] = c2;
    words[4 * b + 3] = c3;
  }
}

// Of elements [first, first + n) of the stream.
const uint16_t* stream_halves(uint64_t seed, uint64_t stream, int64_t first, int64_t n, uint16_t* halves) {
  constexpr int64_t kBlock = 8;
  FIVEFOLD_CHECK(0 <= n && n <= kRandomChunk && first >= 0);
  const int64_t first_block = first / kBlock;
  const int64_t num_blocks = div_ceil(first + n, kBlock) - first_block;
  uint32_t words[(kRandomChunk + 2 * kBlock) / 2];
  philox_blocks(seed, stream, static_cast<uint64_t>(first_block), num_blocks, words);
  for (int64_t i = 0; i < 4 * num_blocks; ++i) {
    halves[2 * i] = static_cast<uint16_t>(words[i]);
    halves[2 * i + 1] = static_cast<uint16_t>(words[i] >> 16);
  }
  return halves + first % kBlock;
}

}  // namespace

const uint16_t* draw_halves(const RoundingBits& bits, int64_t begin, int64_t n, uint16_t* halves) {
  if (bits.runs.empty()) return stream_halves(bits.seed, bits.stream, bits.first + begin, n, halves);
  const auto after = std::upper_bound(bits.runs.begin(), bits.runs.end(), begin,
                                      [](int64_t element, const StreamRun& run) { return element < run.begin; });
  size_t index = static_cast<size_t>(after - bits.runs.begin());
  if (index > 0) --index;
  for (; index < bits.runs.size() && bits.runs[index].begin < begin + n; ++index) {
    const StreamRun& run = bits.runs[index];
    const int64_t next = index + 1 < bits.runs.size() ? bits.runs[index + 1].begin : begin + n;
    const int64_t from = std::max(begin, run.begin), to = std::min(begin + n, next);
    uint16_t part[kRandomHalves];
    const uint16_t* drawn = stream_halves(bits.seed, bits.stream, run.position + from - run.begin, to - from, part);
    std::copy(drawn, drawn + (to - from), halves + (from - begin));
  }
  return halves;
}

}  // namespace fivefold::kernels
