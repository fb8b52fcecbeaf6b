#include "kernels/elementwise.h"

#include <limits>

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

const std::vector<int64_t> kLengths = {1, 15, 16384, 50001};

template <class T>
class Elementwise : public ::testing::Test {};
TYPED_TEST_SUITE(Elementwise, ElementTypes);

template <class T>
void expect_rounded_like_the_scalar_conversion() {
  for (const int64_t n : kLengths) {
    std::vector<float> x = random_elements<float>(n, 1);
    x[0] = std::numeric_limits<float>::quiet_NaN();
    std::vector<T> narrow(x.size());
    std::vector<float> wide(x.size());
    convert(x.data(), narrow.data(), n, 2);
    convert(narrow.data(), wide.data(), n, 2);
    EXPECT_TRUE(std::isnan(wide[0]));
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(narrow[i].bits, from_float<T>(x[i]).bits);
      if (!std::isnan(x[i])) {
        EXPECT_EQ(wide[i], to_float(narrow[i]));
      }
    }
  }
}

TEST(Convert, RoundsLikeTheScalarConversion) {
  expect_rounded_like_the_scalar_conversion<BFloat16>();
  expect_rounded_like_the_scalar_conversion<Float16>();
}

TEST(Convert, RowsOfAStridedMatrixAndNothingElse) {
  for (const Shape shape : kShapes) {
    const int64_t from_stride = shape.cols + 3, to_stride = shape.cols + 5;
    const std::vector<Float16> from = random_elements<Float16>(shape.rows * from_stride, 3);
    std::vector<float> to(static_cast<size_t>(shape.rows * to_stride), 7.0f);
    convert_rows(from.data(), from_stride, to.data(), to_stride, shape.rows, shape.cols, 2);
    std::vector<Float16> back(from.size(), Float16{0x7bff});
    convert_rows(to.data(), to_stride, back.data(), from_stride, shape.rows, shape.cols, 2);
    for (int64_t r = 0; r < shape.rows; ++r) {
      for (int64_t c = 0; c < to_stride; ++c) {
        const float expected = c < shape.cols ? to_float(from[static_cast<size_t>(r * from_stride + c)]) : 7.0f;
        ASSERT_EQ(to[static_cast<size_t>(r * to_stride + c)], expected);
      }
      for (int64_t c = 0; c < from_stride; ++c) {
        const auto i = static_cast<size_t>(r * from_stride + c);
        ASSERT_EQ(back[i].bits, c < shape.cols ? from[i].bits : 0x7bff);
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
    // The largest finite numbers of bf16 and fp16.
    x[0] = from_float<TypeParam>(std::is_same_v<TypeParam, Float16> ? -65504.0f : -0x1.fep127f);
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
