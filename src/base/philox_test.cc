#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fivefold {
namespace {

using Block = std::array<uint32_t, 4>;

// Random123's tests/kat_vectors, the three lines "philox4x32 10".
TEST(Philox, MatchesPublishedKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Published FNV-1a 64-bit values (draft-eastlake-fnv, test vectors).
TEST(Philox, StreamIsFnv1a) {
  EXPECT_EQ(random_stream(""), 0xcbf29ce484222325U);
  EXPECT_EQ(random_stream("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(random_stream("foobar"), 0x85944171f73967e8U);
}

// The first known answer through the keyed functions, transformed in 50-digit decimal arithmetic and rounded to fp32.
TEST(Philox, NormalsAreTheRoundedBoxMullerTransform) {
  const float expected[] = {0x1.81109cp-5F, -0x1.5acc02p+0F, -0x1.8e2034p-1F, 0x1.88911ep-4F};
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(random_normal(0, 0, i), expected[i]) << i;
}

// Independent implementation of the generator in Python integers, transform in 50-digit decimals.
TEST(Philox, SeedStreamAndIndexEnterWhole) {
  struct Row {
    uint64_t index;
    uint32_t word;
    float uniform, normal;
  };
  const uint64_t seed = (uint64_t{3} << 32) | 7;
  const uint64_t stream = random_stream("lm_head.weight");
  const Row rows[] = {
      {0, 0x06007796, 0x1.801dcp-6F, -0x1.5e914ep+1F},
      {5, 0xfe55c7e0, 0x1.fcab8ep-1F, -0x1.58b4c2p+0F},
      {17179869186, 0x3551ee0e, 0x1.aa8f7p-3F, 0x1.b34e7ap+0F},  // 4 * 2^32 + 2: high word of the block
      {1099511627779, 0x570d9c00, 0x1.5c367p-2F, 0x1.a221p-1F},  // 2^40 + 3
  };
  for (const Row& row : rows) {
    EXPECT_EQ(random_word(seed, stream, row.index), row.word) << row.index;
    EXPECT_EQ(random_uniform(seed, stream, row.index), row.uniform) << row.index;
    EXPECT_EQ(random_normal(seed, stream, row.index), row.normal) << row.index;
  }
}

// libm in fp64 is another implementation of the same formula; fp32 rounding leaves at most one unit in the last place.
TEST(Philox, NormalsAgreeWithTheMathLibrary) {
  for (uint64_t block = 0; block < 50000; ++block) {
    const double u = (random_word(11, 5, 4 * block) + 0.5) * 0x1p-32;
    const double angle = 2.0 * M_PI * ((random_word(11, 5, 4 * block + 1) + 0.5) * 0x1p-32 - 0.125);
    const double radius = std::sqrt(-2.0 * std::log(u));
    ASSERT_FLOAT_EQ(random_normal(11, 5, 4 * block), static_cast<float>(radius * std::cos(angle)));
    ASSERT_FLOAT_EQ(random_normal(11, 5, 4 * block + 1), static_cast<float>(radius * std::sin(angle)));
  }
}

TEST(Philox, AnySliceEqualsThePartOfTheWhole) {
  std::vector<float> whole_normal(41), whole_uniform(41);
  fill_normal(1, 2, 0, whole_normal);
  fill_uniform(1, 2, 0, whole_uniform);
  for (size_t first = 0; first <= 9; ++first) {
    for (size_t count = 0; count <= 9; ++count) {
      std::vector<float> slice(count);
      fill_normal(1, 2, first, slice);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(slice[i], whole_normal[first + i]);
        ASSERT_EQ(slice[i], random_normal(1, 2, first + i));
      }
      fill_uniform(1, 2, first, slice);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(slice[i], whole_uniform[first + i]);
    }
  }
}

// n = 2^20 draws: the mean of a standard normal deviates by 1/sqrt(n) = 0.00098, its variance by sqrt(2/n) = 0.0014,
// its fourth moment by sqrt(96/n) = 0.0096 (standard deviations). Bounds are five of them.
TEST(Philox, MomentsAreThoseOfTheDistributions) {
  const size_t n = 1 << 20;
  std::vector<float> x(n);
  fill_normal(42, 1, 0, x);
  double sum = 0, square = 0, fourth = 0;
  for (const double v : x) {
    sum += v;
    square += v * v;
    fourth += v * v * v * v;
  }
  EXPECT_NEAR(sum / n, 0.0, 0.0049);
  EXPECT_NEAR(square / n, 1.0, 0.007);
  EXPECT_NEAR(fourth / n, 3.0, 0.048);
  fill_uniform(42, 1, 0, x);
  sum = 0;
  for (const float v : x) {
    ASSERT_GE(v, 0.0F);
    ASSERT_LT(v, 1.0F);
    sum += v;
  }
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
}

TEST(Philox, SeedsAndStreamsDiffer) {
  EXPECT_NE(random_word(1, 0, 0), random_word(2, 0, 0));
  EXPECT_NE(random_word(0, 1, 0), random_word(0, 2, 0));
  EXPECT_NE(random_word(uint64_t{1} << 32, 0, 0), random_word(0, 0, 0));
  EXPECT_NE(random_word(0, uint64_t{1} << 32, 0), random_word(0, 0, 0));
}

}  // namespace
}  // namespace fivefold
