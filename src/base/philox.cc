// Compiled with -ffp-contract=off (see CMakeLists.txt): a fused multiply-add would change the last bit of the normals
// on machines that have one.
#include "base/philox.h"

#include <bit>
#include <cmath>

namespace fivefold {
namespace {

// Multipliers and Weyl increments of the paper's table for Philox4x32.
constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

std::array<uint32_t, 4> stream_block(uint64_t seed, uint64_t stream, uint64_t block) {
  return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(stream),
                     static_cast<uint32_t>(stream >> 32)},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

float to_uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24F; }

// -ln((word + 1/2) 2^-32). The argument is m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh(s), s = (m - 1) / (m +
// 1), |s| < 0.1716, by its series. First term left out: s^20 / 21 < 3e-17 of the sum.
double negative_log(uint32_t word) {
  const double x = static_cast<double>(word) + 0.5;  // exact, in [0.5, 2^32)
  const auto bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);  // [1, 2)
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double t = s * s;
  double sum = 1.0 / 19.0;
  for (const double odd : {17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0}) sum = sum * t + 1.0 / odd;
  return static_cast<double>(32 - exponent) * 0.6931471805599453 - 2.0 * s * sum;
}

struct CosSin {
  double cos, sin;
};

// Cosine and sine of 2 pi ((word + 1/2) 2^-32 - 1/8): the top two bits are the quarter turn, the rest an angle in
// (-pi/4, pi/4) by its Taylor series. First terms left out: x^16 / 16! and x^17 / 17!, below 1.1e-15.
CosSin cos_sin(uint32_t word) {
  const double x = (static_cast<double>(word & 0x3FFFFFFF) + 0.5 - 0x1p29) * (0x1p-30 * 1.5707963267948966);
  const double t = x * x;
  double c = 1.0, s = 1.0;
  for (const double k : {14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0}) {
    c = 1.0 - c * t / (k * (k - 1.0));
    s = 1.0 - s * t / (k * (k + 1.0));
  }
  s *= x;
  switch (word >> 30) {
    case 0:
      return {c, s};
    case 1:
      return {-s, c};
    case 2:
      return {-c, -s};
    default:
      return {s, -c};
  }
}

std::array<float, 4> to_normals(const std::array<uint32_t, 4>& words) {
  std::array<float, 4> out;
  for (size_t pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(2.0 * negative_log(words[2 * pair]));
    const CosSin direction = cos_sin(words[2 * pair + 1]);
    out[2 * pair] = static_cast<float>(radius * direction.cos);
    out[2 * pair + 1] = static_cast<float>(radius * direction.sin);
  }
  return out;
}

std::array<float, 4> to_uniforms(const std::array<uint32_t, 4>& words) {
  return {to_uniform(words[0]), to_uniform(words[1]), to_uniform(words[2]), to_uniform(words[3])};
}

// Writes `convert` of the stream's blocks, from the middle of a block if need be.
template <typename Convert>
void fill(uint64_t seed, uint64_t stream, uint64_t first_index, std::span<float> out, Convert convert) {
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t index = first_index + done;
    const auto values = convert(stream_block(seed, stream, index / 4));
    for (size_t lane = index % 4; lane < 4 && done < out.size(); ++lane) out[done++] = values[lane];
  }
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * counter[0];
    const uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

uint32_t random_word(uint64_t seed, uint64_t stream, uint64_t index) {
  return stream_block(seed, stream, index / 4)[index % 4];
}

float random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return to_uniform(random_word(seed, stream, index));
}

float random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
  return to_normals(stream_block(seed, stream, index / 4))[index % 4];
}

void fill_uniform(uint64_t seed, uint64_t stream, uint64_t first_index, std::span<float> out) {
  fill(seed, stream, first_index, out, to_uniforms);
}

void fill_normal(uint64_t seed, uint64_t stream, uint64_t first_index, std::span<float> out) {
  fill(seed, stream, first_index, out, to_normals);
}

}  // namespace fivefold
