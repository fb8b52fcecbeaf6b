#include "kernels/rope.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

struct Geometry {
  int64_t rows, num_heads, head_dim, rotary_dim, row_stride;
};
// With whole and partial rotation, and with heads behind those that turn.
const std::vector<Geometry> kGeometries = {
    {1, 1, 2, 2, 2}, {5, 3, 16, 16, 64}, {33, 2, 64, 64, 256}, {9, 2, 20, 10, 60}, {700, 3, 34, 34, 136}};
constexpr int64_t kPositions = 50;
constexpr double kTableFactor = 1.25;  // as YaRN's attention scaling

template <class T>
struct Case {
  Geometry g;
  std::vector<T> packed = random_elements<T>(g.rows * g.row_stride, 1);
  std::vector<int32_t> positions = random_indices(g.rows, kPositions, 2);
  std::vector<float> cos_table, sin_table;

  explicit Case(const Geometry& geometry) : g(geometry) {
    for (int64_t p = 0; p < kPositions; ++p) {
      for (int64_t i = 0; i < g.rotary_dim / 2; ++i) {
        const double angle = static_cast<double>(p) *
                             std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(g.rotary_dim));
        cos_table.push_back(static_cast<float>(kTableFactor * std::cos(angle)));
        sin_table.push_back(static_cast<float>(kTableFactor * std::sin(angle)));
      }
    }
  }
  void run(RopeDirection direction, int num_threads = 2) {
    rope<T>({.packed = packed.data(),
             .cos_table = cos_table.data(),
             .sin_table = sin_table.data(),
             .positions = positions.data(),
             .rows = g.rows,
             .row_stride = g.row_stride,
             .num_heads = g.num_heads,
             .head_dim = g.head_dim,
             .rotary_dim = g.rotary_dim,
             .direction = direction,
             .num_threads = num_threads});
  }
};

template <class T>
class RopeTest : public ::testing::Test {};
TYPED_TEST_SUITE(RopeTest, ElementTypes);

TYPED_TEST(RopeTest, MultipliesPairsByTheComplexFactor) {
  for (const Geometry& g : kGeometries) {
    for (const RopeDirection direction : {RopeDirection::kForward, RopeDirection::kBackward}) {
      Case<TypeParam> c(g);
      Values expected = read(c.packed);
      Values error(expected.size());
      const int64_t half = g.rotary_dim / 2;
      for (int64_t r = 0; r < g.rows; ++r) {
        for (int64_t h = 0; h < g.num_heads; ++h) {
          for (int64_t i = 0; i < half; ++i) {
            // As in complex numbers: (x + iy) (c + is) forward, (c - is) for its transpose.
            const size_t table = static_cast<size_t>(c.positions[static_cast<size_t>(r)] * half + i);
            const double cosine = static_cast<double>(c.cos_table[table]);
            const double sine =
                static_cast<double>(c.sin_table[table]) * (direction == RopeDirection::kForward ? 1 : -1);
            double& x = expected[static_cast<size_t>(r * g.row_stride + h * g.head_dim + i)];
            double& y = expected[static_cast<size_t>(r * g.row_stride + h * g.head_dim + half + i)];
            const double magnitude = 3 * kUnitF32 * kTableFactor * (std::abs(x) + std::abs(y));
            error[static_cast<size_t>(&x - expected.data())] = magnitude;
            error[static_cast<size_t>(&y - expected.data())] = magnitude;
            const double turned = x * cosine - y * sine;
            y = x * sine + y * cosine;
            x = turned;
          }
        }
      }
      c.run(direction);
      expect_within(c.packed, expected, error, "RoPE with head_dim " + std::to_string(g.head_dim));
    }
  }
}

// For a linear map R and its transpose: (R a) . b = a . (R^T b).
TYPED_TEST(RopeTest, BackwardIsTheTransposeOfTheForward) {
  Case<TypeParam> a({33, 2, 64, 64, 128});
  Case<TypeParam> b = a;
  b.packed = random_elements<TypeParam>(33 * 128, 9);
  const Values a_before = read(a.packed);
  const Values b_before = read(b.packed);
  a.run(RopeDirection::kForward);
  b.run(RopeDirection::kBackward);
  const Values a_after = read(a.packed);
  const Values b_after = read(b.packed);
  double left = 0, right = 0, magnitude = 0;
  for (size_t i = 0; i < a_before.size(); ++i) {
    left += a_after[i] * b_before[i];
    right += a_before[i] * b_after[i];
    magnitude += std::abs(a_after[i] * b_before[i]) + std::abs(a_before[i] * b_after[i]);
  }
  EXPECT_NEAR(left, right, 2 * kUnit<TypeParam> * magnitude);
}

TYPED_TEST(RopeTest, ThreadsChangeNoBit) {
  expect_same_bits_for_any_threads([](int num_threads) {
    Case<TypeParam> c({700, 3, 34, 34, 136});
    c.run(RopeDirection::kForward, num_threads);
    return bytes_of(c.packed);
  });
}

}  // namespace
}  // namespace fivefold::kernels
