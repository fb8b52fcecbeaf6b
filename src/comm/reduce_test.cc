#include "comm/reduce.h"

#include <gtest/gtest.h>

#include <limits>

#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

using comm_test::Bf16;
using comm_test::buffer_of;
using comm_test::dtype_of;
using comm_test::element;
using comm_test::Fp16;
using comm_test::value_of;

template <typename Out, typename T>
std::vector<Out> reduce(const std::vector<std::vector<T>>& sources, Reduction reduction = Reduction::kSum,
                        std::vector<Out> out = {}) {
  const Output mode = out.empty() ? Output::kOverwrite : Output::kAccumulate;
  out.resize(sources[0].size());
  std::vector<const void*> pointers;
  for (const auto& source : sources) pointers.push_back(source.data());
  reduce_in_order(pointers, static_cast<int64_t>(out.size()), dtype_of<T>(), reduction, out.data(), dtype_of<Out>(),
                  mode);
  return out;
}

template <typename T>
T bits(uint16_t x) {
  return static_cast<T>(x);
}

TEST(Reduce, SumsInOrderNotPairwise) {
  // fp32: (1e8 + 1) = 1e8, then - 1e8 = 0. Any other order gives 1.
  EXPECT_EQ((reduce<float, float>({{1e8f}, {1.0f}, {-1e8f}})), std::vector<float>{0.0f});
  EXPECT_EQ((reduce<float, float>({{1e8f}, {-1e8f}, {1.0f}})), std::vector<float>{1.0f});
}

TEST(Reduce, RoundsHalfPrecisionOnce) {
  // bf16 has 8 significant bits: 256 + 1 + 1 = 258 in fp32, a bf16. Rounded after each step it would stay 256.
  const Bf16 big = element<Bf16>(256), one = element<Bf16>(1);
  EXPECT_EQ(value_of(reduce<Bf16, Bf16>({{big}, {one}, {one}})[0]), 258);
  // fp16 has 11: 2048 + 1 + 1 = 2050.
  const Fp16 large = element<Fp16>(2048), unit = element<Fp16>(1);
  EXPECT_EQ(value_of(reduce<Fp16, Fp16>({{large}, {unit}, {unit}})[0]), 2050);
}

TEST(Reduce, RoundsTiesToEven) {
  // 257 lies between the bf16 256 and 258; 259 between 258 and 260.
  EXPECT_EQ(value_of(reduce<Bf16, Bf16>({{element<Bf16>(256)}, {element<Bf16>(1)}})[0]), 256);
  EXPECT_EQ(value_of(reduce<Bf16, Bf16>({{element<Bf16>(258)}, {element<Bf16>(1)}})[0]), 260);
  // 2049 lies between the fp16 2048 and 2050; 2051 between 2050 and 2052.
  EXPECT_EQ(value_of(reduce<Fp16, Fp16>({{element<Fp16>(2048)}, {element<Fp16>(1)}})[0]), 2048);
  EXPECT_EQ(value_of(reduce<Fp16, Fp16>({{element<Fp16>(2050)}, {element<Fp16>(1)}})[0]), 2052);
}

// Every finite fp16 and bf16 survives widening and narrowing, and widens to the value that its fields say.
template <typename T>
void expect_every_value_survives(uint16_t infinity) {
  std::vector<T> all;
  for (uint32_t b = 0; b < 0x10000; ++b)
    if ((b & 0x7fff) < infinity) all.push_back(bits<T>(static_cast<uint16_t>(b)));
  EXPECT_EQ((reduce<T, T>({all})), all);
  const auto wide = reduce<float, T>({all});
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(wide[i], value_of(all[i])) << i;
}
TEST(Reduce, EveryFp16Survives) { expect_every_value_survives<Fp16>(0x7c00); }
TEST(Reduce, EveryBf16Survives) { expect_every_value_survives<Bf16>(0x7f80); }

TEST(Reduce, NarrowsToTheNearestFp16) {
  // Sums of two fp16 are exact in fp32 here, and most are no fp16: subnormal, normal and near the largest.
  std::vector<Fp16> x, y;
  for (uint32_t b = 0; b < 0x7a00; b += 3) {
    x.push_back(bits<Fp16>(static_cast<uint16_t>(b)));
    y.push_back(bits<Fp16>(static_cast<uint16_t>(b > 0x1800 ? b - 0x1001 : b / 2)));
  }
  const auto sum = reduce<Fp16, Fp16>({x, y});
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(sum[i], element<Fp16>(value_of(x[i]) + value_of(y[i]))) << i;
}

TEST(Reduce, InfinitiesAndNaNs) {
  const Fp16 largest = bits<Fp16>(0x7bff), infinity = bits<Fp16>(0x7c00);
  EXPECT_EQ((reduce<Fp16, Fp16>({{largest}, {largest}})[0]), infinity);
  // 65504 + 16 is the tie between the largest fp16 and 65536, which rounds to the even 65536, that is infinity.
  EXPECT_EQ((reduce<Fp16, Fp16>({{largest}, {element<Fp16>(16)}})[0]), infinity);
  EXPECT_EQ((reduce<Fp16, Fp16>({{largest}, {element<Fp16>(15)}})[0]), largest);
  EXPECT_EQ((reduce<Fp16, Fp16>({{infinity}, {element<Fp16>(1)}})[0]), infinity);
  const Bf16 minus_infinity = bits<Bf16>(0xff80);
  EXPECT_EQ((reduce<Bf16, Bf16>({{minus_infinity}, {element<Bf16>(1)}})[0]), minus_infinity);
  for (const bool nan_first : {true, false}) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<std::vector<float>> values = {{nan_first ? nan : 1.0f}, {nan_first ? 1.0f : nan}};
    EXPECT_TRUE(std::isnan(reduce<float>(values)[0]));
    EXPECT_TRUE(std::isnan(reduce<float>(values, Reduction::kMax)[0]));
  }
  const auto infinity_minus_infinity = reduce<Bf16, Bf16>({{bits<Bf16>(0x7f80)}, {minus_infinity}})[0];
  EXPECT_GT(static_cast<uint16_t>(infinity_minus_infinity) & 0x7fff, 0x7f80);
}

TEST(Reduce, IntegersAreExactAndWrap) {
  const int64_t big = (int64_t{1} << 53) + 1;  // not a double
  EXPECT_EQ((reduce<int64_t, int64_t>({{big}, {2}, {-1}})[0]), big + 1);
  EXPECT_EQ((reduce<int64_t, int64_t>({{big}, {big + 1}}, Reduction::kMax)[0]), big + 1);
  EXPECT_EQ((reduce<int32_t, int32_t>({{2147483647}, {1}})[0]), -2147483647 - 1);
  EXPECT_EQ((reduce<int32_t, int32_t>({{-5}, {-7}}, Reduction::kMax)[0]), -5);
}

TEST(Reduce, AccumulatesAfterTheSum) {
  // 2^24 + (3 + 3) is a float. One by one, each step is a tie that goes up: 2^24 + 4, then 2^24 + 8.
  EXPECT_EQ((reduce<float, float>({{3.0f}, {3.0f}}, Reduction::kSum, {16777216.0f})[0]), 16777222.0f);
  EXPECT_EQ((reduce<float, Bf16>({{element<Bf16>(1)}, {element<Bf16>(2)}}, Reduction::kSum, {0.5f})[0]), 3.5f);
  EXPECT_EQ((reduce<int64_t, int64_t>({{1}, {2}}, Reduction::kMax, {7})[0]), 7);
}

TEST(Reduce, BlocksAndTails) {
  // Longer than several blocks, and not a multiple of any vector: element i of source s is i * (s + 1), so the sum over
  // 5 sources is 15 i (exact in fp32 up to 2^24 / 15).
  for (const size_t count : {0u, 1u, 15u, 2047u, 2048u, 2049u, 10001u}) {
    std::vector<std::vector<float>> sources(5, std::vector<float>(count));
    for (size_t s = 0; s < 5; ++s)
      for (size_t i = 0; i < count; ++i) sources[s][i] = static_cast<float>(i * (s + 1));
    const auto sum = reduce<float>(sources);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], static_cast<float>(15 * i));
  }
}

TEST(Reduce, OutputMayBeASource) {
  std::vector<float> x = {1, 2, 3}, y = {10, 20, 30};
  const std::vector<const void*> sources = {x.data(), y.data()};
  reduce_in_order(sources, 3, DType::kFloat32, Reduction::kSum, y.data(), DType::kFloat32, Output::kOverwrite);
  EXPECT_EQ(y, (std::vector<float>{11, 22, 33}));
}

TEST(ReduceDeathTest, BytesCannotBeSummed) {
  EXPECT_DEATH((reduce<uint8_t, uint8_t>({{1}, {2}})), "cannot be reduced");
}

}  // namespace
}  // namespace fivefold
