#include "kernels/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/clones.h"

namespace fivefold::kernels {
namespace {

// In the variant that the kernels run in on this processor.
FIVEFOLD_CLONES void exp_range(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = exp_f32(x[i]);
}
FIVEFOLD_CLONES void sigmoid_range(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = sigmoid_f32(x[i]);
}
FIVEFOLD_CLONES void normal_cdf_range(const float* x, float* cdf, float* density, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const NormalCdf normal = normal_cdf_f32(x[i]);
    cdf[i] = normal.cdf;
    density[i] = normal.density;
  }
}

// Distance between neighbouring floats at |value|.
double ulp(double value) {
  const int exponent = std::max(std::ilogb(value), -126);
  return std::ldexp(1.0, exponent - 23);
}

std::vector<float> sweep(double from, double to, int64_t n) {
  std::vector<float> points(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    points[static_cast<size_t>(i)] =
        static_cast<float>(from + (to - from) * static_cast<double>(i) / static_cast<double>(n - 1));
  }
  return points;
}

TEST(VectorMath, ExpIsWithinTwoUlp) {
  const std::vector<float> x = sweep(-103.0, 88.7, 3000001);
  std::vector<float> y(x.size());
  exp_range(x.data(), y.data(), static_cast<int64_t>(x.size()));
  double worst = 0;
  float worst_x = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(static_cast<double>(x[i]));
    const double error = std::abs(y[i] - expected) / ulp(expected);
    if (!(error <= worst)) worst = error, worst_x = x[i];
  }
  EXPECT_LE(worst, 2.0) << "at " << worst_x;
}

TEST(VectorMath, ExpAtTheEnds) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0f, -0.0f, 89.0f, infinity, -105.0f, -infinity, std::nanf(""), 1e30f, -1e30f};
  std::vector<float> y(x.size());
  exp_range(x.data(), y.data(), static_cast<int64_t>(x.size()));
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_EQ(y[2], infinity);
  EXPECT_EQ(y[3], infinity);
  EXPECT_EQ(y[4], 0.0f);
  EXPECT_EQ(y[5], 0.0f);
  EXPECT_TRUE(std::isnan(y[6]));
  EXPECT_EQ(y[7], infinity);
  EXPECT_EQ(y[8], 0.0f);
}

TEST(VectorMath, SigmoidIsWithinFourUlp) {
  const std::vector<float> x = sweep(-87.0, 100.0, 3000001);
  std::vector<float> y(x.size());
  sigmoid_range(x.data(), y.data(), static_cast<int64_t>(x.size()));
  double worst = 0;
  float worst_x = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = 1.0 / (1.0 + std::exp(-static_cast<double>(x[i])));
    const double error = std::abs(y[i] - expected) / ulp(expected);
    if (!(error <= worst)) worst = error, worst_x = x[i];
  }
  EXPECT_LE(worst, 4.0) << "at " << worst_x;
}

TEST(VectorMath, SigmoidAtTheEnds) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0f, -0.0f, 1e30f, infinity, -89.5f, -1e30f, -infinity, std::nanf(""), -88.0f, -88.6f};
  std::vector<float> y(x.size());
  sigmoid_range(x.data(), y.data(), static_cast<int64_t>(x.size()));
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_EQ(y[1], 0.5f);
  EXPECT_EQ(y[2], 1.0f);
  EXPECT_EQ(y[3], 1.0f);
  for (int i : {4, 5, 6}) EXPECT_EQ(y[static_cast<size_t>(i)], 0.0f) << i;
  EXPECT_TRUE(std::isnan(y[7]));
  for (int i : {8, 9}) {  // subnormal or 0
    EXPECT_GE(y[static_cast<size_t>(i)], 0.0f);
    EXPECT_LT(y[static_cast<size_t>(i)], 0x1p-126f);
  }
}

TEST(VectorMath, NormalCdfAndDensity) {
  const std::vector<float> x = sweep(-14.0, 14.0, 1000001);
  std::vector<float> cdf(x.size());
  std::vector<float> density(x.size());
  normal_cdf_range(x.data(), cdf.data(), density.data(), static_cast<int64_t>(x.size()));
  double worst_cdf = 0;
  double worst_density = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact_x = static_cast<double>(x[i]);
    const double expected_cdf = 0.5 * std::erfc(-exact_x / std::sqrt(2.0));
    const double expected_density = std::exp(-0.5 * exact_x * exact_x) / std::sqrt(2.0 * M_PI);
    worst_cdf = std::max(worst_cdf, std::abs(cdf[i] - expected_cdf));
    worst_density = std::max(worst_density, std::abs(density[i] - expected_density));
  }
  EXPECT_LE(worst_cdf, 3e-7);
  EXPECT_LE(worst_density, 2e-7);
}

}  // namespace
}  // namespace fivefold::kernels
