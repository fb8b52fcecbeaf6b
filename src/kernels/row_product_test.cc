#include "kernels/row_product.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

// One row, lengths that no vector divides, and more rows than a block has.
const std::vector<Shape> kWeights = {{1, 1}, {3, 7}, {65, 31}, {48, 576}, {1000, 129}};

template <class T>
struct Case {
  Shape shape;
  std::vector<T> x = random_elements<T>(shape.cols, 1), weight = random_elements<T>(shape.rows * shape.cols, 2);
  std::vector<T> bias = random_elements<T>(shape.rows, 3), residual = random_elements<T>(shape.rows, 4);
  bool adds = false;

  template <class Out>
  std::vector<Out> run(int num_threads = 2) const {
    std::vector<Out> out(static_cast<size_t>(shape.rows));
    std::vector<float> scratch(static_cast<size_t>(shape.cols));
    row_product<T>({.x = x.data(),
                    .weight = weight.data(),
                    .bias = adds ? bias.data() : nullptr,
                    .residual = adds ? residual.data() : nullptr,
                    .out = out.data(),
                    .out_type = kElementTypeOf<Out>,
                    .scratch = scratch.data(),
                    .rows = shape.rows,
                    .cols = shape.cols,
                    .num_threads = num_threads});
    return out;
  }
  // The sums in fp64 and what fp32 may lose: a rounding a term.
  void expect(Values& sums, Values& error) const {
    const Values xs = read(x), ws = read(weight), bs = read(bias), rs = read(residual);
    for (int64_t r = 0; r < shape.rows; ++r) {
      const auto row = static_cast<size_t>(r);
      double sum = adds ? bs[row] + rs[row] : 0, magnitude = adds ? std::abs(bs[row]) + std::abs(rs[row]) : 0;
      for (size_t c = 0; c < xs.size(); ++c) {
        const double term = ws[row * xs.size() + c] * xs[c];
        sum += term;
        magnitude += std::abs(term);
      }
      sums.push_back(sum);
      error.push_back(static_cast<double>(shape.cols + 2) * kUnitF32 * magnitude);
    }
  }
};

template <class T>
class RowProductTest : public ::testing::Test {};
TYPED_TEST_SUITE(RowProductTest, ElementTypes);

TYPED_TEST(RowProductTest, SumsEachRowOnce) {
  for (const Shape& shape : kWeights) {
    for (const bool adds : {false, true}) {
      Case<TypeParam> c{shape};
      c.adds = adds;
      Values sums, error;
      c.expect(sums, error);
      const std::string what = std::to_string(shape.rows) + " x " + std::to_string(shape.cols);
      expect_within(c.template run<TypeParam>(), sums, error, what);
      expect_within(c.template run<float>(), sums, error, what + " in fp32");
    }
  }
}

// The residual stream may be added to where it lies.
TYPED_TEST(RowProductTest, AddsInPlace) {
  Case<TypeParam> c{{65, 31}};
  c.adds = true;
  const std::vector<TypeParam> apart = c.template run<TypeParam>();
  std::vector<TypeParam> stream = c.residual;
  std::vector<float> scratch(31);
  row_product<TypeParam>({.x = c.x.data(),
                          .weight = c.weight.data(),
                          .bias = c.bias.data(),
                          .residual = stream.data(),
                          .out = stream.data(),
                          .scratch = scratch.data(),
                          .rows = 65,
                          .cols = 31,
                          .num_threads = 2});
  EXPECT_EQ(bytes_of(stream), bytes_of(apart));
}

TYPED_TEST(RowProductTest, ThreadsChangeNoBit) {
  const Case<TypeParam> c{{1000, 129}};
  expect_same_bits_for_any_threads([&](int num_threads) { return bytes_of(c.template run<float>(num_threads)); });
}

}  // namespace
}  // namespace fivefold::kernels
