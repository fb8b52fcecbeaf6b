#include "kernels/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace fivefold::kernels {
namespace {

uint16_t bf16_bits(float value) { return from_float<BFloat16>(value).bits; }

TEST(BFloat16, RoundsToNearestAndTiesToEven) {
  // bf16 keeps 7 fraction bits: between 1 and 2 its values are 2^-7 apart.
  EXPECT_EQ(bf16_bits(1.0f), 0x3f80);
  EXPECT_EQ(bf16_bits(1.0f + 0x1p-8f), 0x3f80);             // a tie: to the even 0x3f80
  EXPECT_EQ(bf16_bits(1.0f + 0x1p-8f + 0x1p-23f), 0x3f81);  // just above the tie
  EXPECT_EQ(bf16_bits(1.0f + 0x3p-8f), 0x3f82);             // a tie: to the even 0x3f82
  EXPECT_EQ(bf16_bits(1.0f + 0x3p-8f - 0x1p-23f), 0x3f81);  // just below it
  EXPECT_EQ(bf16_bits(-0.0f), 0x8000);
}

TEST(BFloat16, OverflowsToInfinityAndKeepsNaN) {
  // The largest bf16 is (2 - 2^-7) 2^127; from half a step above on, values round to infinity.
  EXPECT_EQ(bf16_bits(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16_bits(-std::numeric_limits<float>::infinity()), 0xff80);
  const uint32_t signalling = 0x7f800001u;  // its payload lies in the half that bf16 drops
  float value;
  std::memcpy(&value, &signalling, sizeof value);
  EXPECT_EQ(bf16_bits(value), 0x7fc0);
  EXPECT_EQ(bf16_bits(-std::numeric_limits<float>::quiet_NaN()) & 0xffc0, 0xffc0);
}

TEST(BFloat16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const BFloat16 value{static_cast<uint16_t>(bits)};
    if (std::isnan(to_float(value))) continue;
    EXPECT_EQ(from_float<BFloat16>(to_float(value)).bits, bits);
  }
}

uint16_t fp16_bits(float value) { return from_float<Float16>(value).bits; }

TEST(Float16, RoundsToNearestAndTiesToEven) {
  // fp16 keeps 10 fraction bits: between 1 and 2 its values are 2^-10 apart.
  EXPECT_EQ(fp16_bits(1.0f), 0x3c00);
  EXPECT_EQ(fp16_bits(1.0f + 0x1p-11f), 0x3c00);             // a tie: to the even 0x3c00
  EXPECT_EQ(fp16_bits(1.0f + 0x1p-11f + 0x1p-23f), 0x3c01);  // just above the tie
  EXPECT_EQ(fp16_bits(1.0f + 0x3p-11f), 0x3c02);             // a tie: to the even 0x3c02
  EXPECT_EQ(fp16_bits(2.0f - 0x1p-12f), 0x4000);             // the carry reaches the exponent
  EXPECT_EQ(fp16_bits(-0.0f), 0x8000);
}

TEST(Float16, SubnormalsAreMultiplesOf2ToMinus24) {
  EXPECT_EQ(fp16_bits(0x1p-14f), 0x0400);  // the smallest normal number
  EXPECT_EQ(fp16_bits(0x1p-24f), 0x0001);
  EXPECT_EQ(fp16_bits(0x1p-25f), 0x0000);             // a tie: to the even 0
  EXPECT_EQ(fp16_bits(0x1.000002p-25f), 0x0001);      // just above it
  EXPECT_EQ(fp16_bits(-0x3p-25f), 0x8002);            // a tie: to the even 2
  EXPECT_EQ(fp16_bits(0x1p-14f - 0x1p-26f), 0x0400);  // rounds up to the smallest normal number
  EXPECT_EQ(fp16_bits(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Float16, OverflowsToInfinityAndKeepsNaN) {
  EXPECT_EQ(fp16_bits(65504.0f), 0x7bff);    // the largest number
  EXPECT_EQ(fp16_bits(65519.996f), 0x7bff);  // below the tie with 65536
  EXPECT_EQ(fp16_bits(65520.0f), 0x7c00);    // the tie: to the even, which is infinity
  EXPECT_EQ(fp16_bits(-1e30f), 0xfc00);
  EXPECT_EQ(fp16_bits(-std::numeric_limits<float>::infinity()), 0xfc00);
  const uint32_t signalling = 0x7f800001u;
  float value;
  std::memcpy(&value, &signalling, sizeof value);
  EXPECT_EQ(fp16_bits(value), 0x7e00);
  EXPECT_EQ(fp16_bits(-std::numeric_limits<float>::quiet_NaN()) & 0xfe00, 0xfe00);
}

// What the fields of the format say: sign, 5 bits of exponent (bias 15), 10 bits of fraction.
TEST(Float16, EveryValueIsWhatItsFieldsSayAndSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float value = to_float(Float16{static_cast<uint16_t>(bits)});
    if (exponent == 31 && fraction != 0) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const double magnitude = exponent == 31  ? std::numeric_limits<double>::infinity()
                             : exponent == 0 ? std::ldexp(fraction, -24)
                                             : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
    EXPECT_EQ(static_cast<double>(value), (bits >> 15) != 0 ? -magnitude : magnitude) << bits;
    EXPECT_EQ(fp16_bits(value), bits);
  }
}

}  // namespace
}  // namespace fivefold::kernels
