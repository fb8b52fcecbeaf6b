#include "kernels/elementwise.h"

#include <limits>

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

const std::vector<int64_t> kLengths = {1, 15, 16384, 50001};

template <class T>
class Elementwise : public ::testing::Test {};
TYPED_TEST_SUITE(Elementwise, ElementTypes);

TEST(Convert, RoundsLikeTheScalarConversion) {
  for (const int64_t n : kLengths) {
    std::vector<float> x = random_elements<float>(n, 1);
    x[0] = std::numeric_limits<float>::quiet_NaN();
    std::vector<BFloat16> narrow(x.size());
    std::vector<float> wide(x.size());
    convert(x.data(), narrow.data(), n, 2);
    convert(narrow.data(), wide.data(), n, 2);
    EXPECT_TRUE(std::isnan(wide[0]));
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(narrow[i].bits, from_float<BFloat16>(x[i]).bits);
      if (!std::isnan(x[i])) {
        EXPECT_EQ(wide[i], to_float(narrow[i]));
      }
    }
  }
}

TYPED_TEST(Elementwise, AddsIntoFp32) {
  for (const int64_t n : kLengths) {
    const std::vector<TypeParam> x = random_elements<TypeParam>(n, 1);
    std::vector<float> sum = random_elements<float>(n, 2);
    const std::vector<float> before = sum;
    add_into(x.data(), sum.data(), n, 2);
    for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], before[i] + to_float(x[i]));
  }
}

TYPED_TEST(Elementwise, Scales) {
  for (const int64_t n : kLengths) {
    std::vector<TypeParam> x = random_elements<TypeParam>(n, 1);
    const std::vector<TypeParam> before = x;
    scale(x.data(), n, 0.3f, 2);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(to_float(x[i]), to_float(from_float<TypeParam>(to_float(before[i]) * 0.3f)));
    }
  }
}

TYPED_TEST(Elementwise, CountsNaNAndInfinityOnly) {
  for (const int64_t n : kLengths) {
    std::vector<TypeParam> x = random_elements<TypeParam>(n, 1);
    x[0] = from_float<TypeParam>(-0x1.fep127f);  // the largest finite bf16
    EXPECT_EQ(count_non_finite(x.data(), n, 2), 0);
    x[0] = from_float<TypeParam>(std::numeric_limits<float>::quiet_NaN());
    x.back() = from_float<TypeParam>(-std::numeric_limits<float>::infinity());
    EXPECT_EQ(count_non_finite(x.data(), n, 3), n == 1 ? 1 : 2);
  }
}

TEST(FillZero, ClearsTheRangeAndNothingElse) {
  for (const int64_t bytes : {0, 1, 1000001}) {
    std::vector<uint8_t> data(static_cast<size_t>(bytes) + 2, 7);
    fill_zero(data.data() + 1, bytes, 2);
    EXPECT_EQ(data.front(), 7);
    EXPECT_EQ(data.back(), 7);
    for (size_t i = 1; i + 1 < data.size(); ++i) ASSERT_EQ(data[i], 0);
  }
}

}  // namespace
}  // namespace fivefold::kernels
