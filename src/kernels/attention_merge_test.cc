#include "kernels/attention_merge.h"

#include <algorithm>
#include <limits>

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Rows {
  std::vector<float> out, factor, lse;
};

Rows random_rows(const Shape& shape, int64_t stride, uint64_t seed) {
  return {random_elements<float>(shape.rows * stride, seed), random_elements<float>(shape.rows, seed + 1, 4.0),
          random_elements<float>(shape.rows, seed + 2, 30.0)};
}

// The plain twin, in fp64, with bounds on the fp32 part of its errors: |a - b| is rounded once, exp, sum, quotient and
// the two products and their sum are eight more roundings (exp and log1p of the library err by less than one each).
struct Twin {
  Values out, out_error, lse, lse_error;

  Twin(const Shape& shape, int64_t stride, const Rows& before, const Rows& added) {
    for (int64_t r = 0; r < shape.rows; ++r) {
      const double a = before.lse[r], b = added.lse[r], largest = std::max(a, b);
      const bool no_key = largest == -kInfinity;
      const double sum = no_key ? 1.0 : std::exp(a - largest) + std::exp(b - largest);
      const double keep = no_key ? 1.0 : std::exp(a - largest) / sum, add = no_key ? 0.0 : std::exp(b - largest) / sum;
      lse.push_back(largest + std::log(sum));
      lse_error.push_back(std::isfinite(largest) ? kUnitF32 * (4.0 + std::abs(largest)) : 0.0);
      const double difference = std::isfinite(a - b) ? std::abs(a - b) : 0.0;
      for (int64_t c = 0; c < shape.cols; ++c) {
        const double x = keep * before.out[r * stride + c];
        const double y = add == 0.0 ? 0.0 : add * added.factor[r] * added.out[r * stride + c];
        out.push_back(x + y);
        out_error.push_back(kUnitF32 * (8.0 + difference) * (std::abs(x) + std::abs(y)));
      }
    }
  }
};

void expect_merges(const Shape& shape, Rows before, const Rows& added) {
  const int64_t stride = shape.cols + 3;
  const Twin twin(shape, stride, before, added);
  const Rows untouched = before;
  merge_attention({.out = added.out.data(),
                   .out_stride = stride,
                   .row_factor = added.factor.data(),
                   .lse = added.lse.data(),
                   .rows = shape.rows,
                   .cols = shape.cols},
                  before.out.data(), stride, before.lse.data());
  std::vector<float> out;
  for (int64_t r = 0; r < shape.rows; ++r) {
    out.insert(out.end(), before.out.begin() + r * stride, before.out.begin() + r * stride + shape.cols);
    for (int64_t c = shape.cols; c < stride; ++c) {
      EXPECT_EQ(before.out[r * stride + c], untouched.out[r * stride + c]);
    }
    if (twin.lse[r] == -kInfinity) {
      EXPECT_EQ(before.lse[r], -kInfinity);
    } else {
      EXPECT_NEAR(before.lse[r], twin.lse[r], twin.lse_error[r] + kUnitF32 * std::abs(twin.lse[r]));
    }
  }
  expect_within(out, twin.out, twin.out_error, "merged rows");
}

TEST(AttentionMerge, WeighsByLogSumExp) {
  for (const Shape& shape : kShapes) {
    const int64_t stride = shape.cols + 3;
    Rows before = random_rows(shape, stride, 1), added = random_rows(shape, stride, 10);
    for (int64_t r = 0; r < shape.rows; r += 2) added.lse[r] = before.lse[r] + 0.1f * static_cast<float>(r % 16 - 8);
    expect_merges(shape, before, added);
  }
}

TEST(AttentionMerge, HoldsForLargeAndFarLogSumExps) {
  const Shape shape{6, 33};
  Rows before = random_rows(shape, 36, 1), added = random_rows(shape, 36, 10);
  before.lse = {1e4f, -1e4f, 300.0f, 300.0f, -1e30f, 1e30f};
  added.lse = {1e4f + 1.0f, -1e4f, 500.0f, 100.0f, 1e30f, -1e30f};
  expect_merges(shape, before, added);
}

// No key on one side, or on both.
TEST(AttentionMerge, RowsWithoutKeysChangeNothing) {
  const Shape shape{3, 17};
  Rows before = random_rows(shape, 20, 1), added = random_rows(shape, 20, 10);
  const float none = -std::numeric_limits<float>::infinity();
  before.lse[0] = before.lse[1] = none;
  std::fill_n(before.out.begin(), 2 * 20, 0.0f);
  added.lse[1] = added.lse[2] = none;
  std::fill_n(added.out.begin() + 20, 2 * 20, std::numeric_limits<float>::quiet_NaN());
  expect_merges(shape, before, added);
}

// Softmax over 40 keys from three parts, against the definition: v_j weighted by exp(s_j), j = 0 .. 39.
TEST(AttentionMerge, PartsOfASoftmaxGiveTheWhole) {
  const std::vector<float> scores = random_elements<float>(40, 3, 8.0), values = random_elements<float>(40, 4);
  float out = 0.0f, lse = -std::numeric_limits<float>::infinity();
  const auto part = [&](int begin, int end) {
    double sum = 0.0, weighted = 0.0;
    for (int j = begin; j < end; ++j)
      sum += std::exp(double{scores[j]}), weighted += std::exp(double{scores[j]}) * values[j];
    return std::pair{sum, weighted};
  };
  for (const auto& [begin, end] : {std::pair{0, 1}, std::pair{1, 30}, std::pair{30, 40}}) {
    const auto [sum, weighted] = part(begin, end);
    const float partial = static_cast<float>(weighted), factor = static_cast<float>(1.0 / sum);
    const float log_sum = static_cast<float>(std::log(sum));
    merge_attention({.out = &partial, .out_stride = 1, .row_factor = &factor, .lse = &log_sum, .rows = 1, .cols = 1},
                    &out, 1, &lse);
  }
  const auto [sum, weighted] = part(0, 40);
  EXPECT_NEAR(out, weighted / sum, 3 * 16 * kUnitF32 * 2.0);  // three merges, values below 2
  EXPECT_NEAR(lse, std::log(sum), 3 * 16 * kUnitF32);
}

}  // namespace
}  // namespace fivefold::kernels
