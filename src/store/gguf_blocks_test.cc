// Each block type with bytes whose values are worked out beside them. fp16: 1.0 = 0x3c00, 0.5 = 0x3800, 2.0 = 0x4000,
// -0.25 = 0xb400.
#include "store/gguf_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "store/gguf_testing.h"

namespace fivefold {
namespace {

std::vector<float> values_of(GgufType type, const std::string& blocks) {
  const GgufBlock& block = gguf_block(type);
  std::vector<float> values(blocks.size() / static_cast<size_t>(block.bytes) * static_cast<size_t>(block.values));
  dequantise(type, std::as_bytes(std::span(blocks)), values);
  return values;
}

const std::string kOne = little_endian<uint16_t>(0x3c00), kHalf = little_endian<uint16_t>(0x3800),
                  kTwo = little_endian<uint16_t>(0x4000), kMinusQuarter = little_endian<uint16_t>(0xb400);

// Bytes whose low half counts up and whose high half counts down: byte j has the codes j and 15 - j.
std::string up_and_down() {
  std::string bytes;
  for (int j = 0; j < 16; ++j) bytes += static_cast<char>((15 - j) << 4 | j);
  return bytes;
}

TEST(GgufBlocks, FloatsOfThreeWidths) {
  EXPECT_EQ(values_of(GgufType::kF32, little_endian(1.25f) + little_endian(-3.0f)), (std::vector<float>{1.25f, -3.0f}));
  // bf16 is the upper half of fp32: 0x3fa0 = 1.25.
  EXPECT_EQ(values_of(GgufType::kBF16, little_endian<uint16_t>(0x3fa0)), std::vector<float>{1.25f});
  EXPECT_EQ(values_of(GgufType::kF16, kOne + kMinusQuarter), (std::vector<float>{1.0f, -0.25f}));
}

TEST(GgufBlocks, HalvesAtTheEndsOfTheirRange) {
  const auto f16 = [](uint16_t bits) { return values_of(GgufType::kF16, little_endian(bits))[0]; };
  EXPECT_EQ(f16(0x0001), std::ldexp(1.0f, -24));          // the least subnormal
  EXPECT_EQ(f16(0x83ff), -1023 * std::ldexp(1.0f, -24));  // the largest subnormal
  EXPECT_EQ(f16(0x0400), std::ldexp(1.0f, -14));          // the least normal
  EXPECT_EQ(f16(0x7bff), 65504.0f);
  EXPECT_EQ(f16(0xfc00), -INFINITY);
  EXPECT_TRUE(std::isnan(f16(0x7e00)));
  EXPECT_TRUE(std::signbit(f16(0x8000)));
}

TEST(GgufBlocks, Q8_0IsScaleTimesSignedByte) {
  std::string block = kHalf;
  for (int j = 0; j < 32; ++j) block += static_cast<char>(j - 16);
  const std::vector<float> values = values_of(GgufType::kQ8_0, block);
  for (int j = 0; j < 32; ++j) EXPECT_EQ(values[static_cast<size_t>(j)], 0.5f * static_cast<float>(j - 16));
}

TEST(GgufBlocks, FourBitsLowHalvesFirst) {
  const std::vector<float> q4_0 = values_of(GgufType::kQ4_0, kTwo + up_and_down());
  const std::vector<float> q4_1 = values_of(GgufType::kQ4_1, kHalf + kOne + up_and_down());
  for (int j = 0; j < 16; ++j) {
    const auto low = static_cast<size_t>(j), high = low + 16;
    EXPECT_EQ(q4_0[low], static_cast<float>(2 * (j - 8)));
    EXPECT_EQ(q4_0[high], static_cast<float>(2 * (7 - j)));
    EXPECT_EQ(q4_1[low], 0.5f * static_cast<float>(j) + 1.0f);
    EXPECT_EQ(q4_1[high], 0.5f * static_cast<float>(15 - j) + 1.0f);
  }
}

// The fifth bits: set for code 0 and code 17 (bits 0 and 17).
TEST(GgufBlocks, FiveBitsTakeTheirHighestFromAMask) {
  const std::string mask = little_endian<uint32_t>(1u | 1u << 17);
  const std::vector<float> q5_0 = values_of(GgufType::kQ5_0, kOne + mask + up_and_down());
  EXPECT_EQ(q5_0[0], 16.0f + 0.0f - 16.0f);
  EXPECT_EQ(q5_0[1], 1.0f - 16.0f);
  EXPECT_EQ(q5_0[16], 15.0f - 16.0f);
  EXPECT_EQ(q5_0[17], 16.0f + 14.0f - 16.0f);
  const std::vector<float> q5_1 = values_of(GgufType::kQ5_1, kHalf + kMinusQuarter + mask + up_and_down());
  EXPECT_EQ(q5_1[0], 0.5f * 16 - 0.25f);
  EXPECT_EQ(q5_1[1], 0.5f * 1 - 0.25f);
  EXPECT_EQ(q5_1[16], 0.5f * 15 - 0.25f);
  EXPECT_EQ(q5_1[17], 0.5f * 30 - 0.25f);
}

// Scales s = 1, 2, 3, 4, 17, 34, 51, 63 and t = 5, 6, 7, 8, 16, 33, 2, 60.
// The last four in bits, high two and low four: s 01 0001, 10 0010, 11 0011, 11 1111; t 01 0000, 10 0001, 00 0010,
// 11 1100. Bytes 0-3: high bits of s 4-7, then s 0-3; bytes 4-7: of t 4-7, then t 0-3; bytes 8-11: t 4-7, s 4-7.
std::string scale_pairs() {
  return {static_cast<char>(1 << 6 | 1),     static_cast<char>(2 << 6 | 2),     static_cast<char>(3 << 6 | 3),
          static_cast<char>(3 << 6 | 4),     static_cast<char>(1 << 6 | 5),     static_cast<char>(2 << 6 | 6),
          static_cast<char>(0 << 6 | 7),     static_cast<char>(3 << 6 | 8),     static_cast<char>(0x0 << 4 | 0x1),
          static_cast<char>(0x1 << 4 | 0x2), static_cast<char>(0x2 << 4 | 0x3), static_cast<char>(0xc << 4 | 0xf)};
}
constexpr int kScales[8] = {1, 2, 3, 4, 17, 34, 51, 63}, kMinima[8] = {5, 6, 7, 8, 16, 33, 2, 60};

// 128 bytes: byte i has the codes i mod 16 and (i + 3) mod 16.
std::string codes_of_256() {
  std::string bytes;
  for (int i = 0; i < 128; ++i) bytes += static_cast<char>((i + 3) % 16 << 4 | i % 16);
  return bytes;
}
// The code of value `i` in them: groups of 64 values share 32 bytes, low halves first.
int code_of(int i) {
  const int byte = 32 * (i / 64) + i % 32;
  return i % 64 < 32 ? byte % 16 : (byte + 3) % 16;
}

TEST(GgufBlocks, Q4_KHasEightScalesAndMinima) {
  const std::vector<float> values = values_of(GgufType::kQ4_K, kHalf + kTwo + scale_pairs() + codes_of_256());
  for (int i = 0; i < 256; ++i)
    EXPECT_EQ(values[static_cast<size_t>(i)],
              0.5f * static_cast<float>(kScales[i / 32] * code_of(i)) - 2.0f * static_cast<float>(kMinima[i / 32]))
        << i;
}

TEST(GgufBlocks, Q5_KTakesFifthBitsByGroupOf32) {
  // Byte 3 has bits 0 and 7: values 3 and 7 * 32 + 3 = 227.
  std::string fifth(32, '\0');
  fifth[3] = static_cast<char>(0x81);
  const std::vector<float> values = values_of(GgufType::kQ5_K, kHalf + kTwo + scale_pairs() + fifth + codes_of_256());
  for (int i = 0; i < 256; ++i) {
    const int code = code_of(i) + (i == 3 || i == 227 ? 16 : 0);
    EXPECT_EQ(values[static_cast<size_t>(i)],
              0.5f * static_cast<float>(kScales[i / 32] * code) - 2.0f * static_cast<float>(kMinima[i / 32]))
        << i;
  }
}

// All low bits 5 (byte 0x55) and all high bits 2 (byte 0xaa): every code is 32 + 5, so a value is d s 5 with s by
// groups of 16. Then single bytes are changed.
TEST(GgufBlocks, Q6_KHasSixteenSignedScales) {
  std::string low(128, '\x55'), high(64, '\xaa'), scales;
  for (int i = 0; i < 16; ++i) scales += static_cast<char>(i - 8);
  std::vector<float> values = values_of(GgufType::kQ6_K, low + high + scales + kHalf);
  for (int i = 0; i < 256; ++i)
    EXPECT_EQ(values[static_cast<size_t>(i)], 0.5f * static_cast<float>((i / 16 - 8) * 5)) << i;

  // In the second half of 128 (bytes from 64 on), byte 64 + 33 holds value 128 + 33 (low) and 128 + 97 (high): 2 and
  // 14 instead of 5. High byte 32 + 7 holds the bits of values 128 + 7, + 39, + 71, + 103: 0, 1, 2, 3.
  low[64 + 33] = static_cast<char>(0xe2);
  high[32 + 7] = static_cast<char>(3 << 6 | 2 << 4 | 1 << 2 | 0);
  values = values_of(GgufType::kQ6_K, low + high + scales + kHalf);
  const auto scale = [](int i) { return 0.5f * static_cast<float>(i / 16 - 8); };
  EXPECT_EQ(values[161], scale(161) * (2 + 32 - 32));
  EXPECT_EQ(values[225], scale(225) * (14 + 32 - 32));
  EXPECT_EQ(values[135], scale(135) * (5 + 0 - 32));
  EXPECT_EQ(values[167], scale(167) * (5 + 16 - 32));
  EXPECT_EQ(values[199], scale(199) * (5 + 32 - 32));
  EXPECT_EQ(values[231], scale(231) * (5 + 48 - 32));
  EXPECT_EQ(values[7], scale(7) * 5);
}

TEST(GgufBlocks, NamesOfTypes) {
  EXPECT_EQ(gguf_type(3), GgufType::kQ4_1);
  EXPECT_EQ(gguf_type(10), std::nullopt);
  EXPECT_EQ(describe_gguf_type(10), "10 (Q2_K)");
  EXPECT_EQ(describe_gguf_type(14), "14 (Q6_K)");
  EXPECT_EQ(describe_gguf_type(99), "99");
}

}  // namespace
}  // namespace fivefold
