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

}  // namespace
}  // namespace fivefold::kernels
