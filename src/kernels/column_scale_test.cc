#include "kernels/column_scale.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

template <class T>
class ColumnScaling : public ::testing::Test {};
TYPED_TEST_SUITE(ColumnScaling, ElementTypes);

std::vector<Shape> shapes() {
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({70, 2500});
  return shapes;
}

TYPED_TEST(ColumnScaling, ScalesThenAdds) {
  for (const Shape shape : shapes()) {
    const int64_t n = shape.rows * shape.cols;
    const std::vector<TypeParam> x = random_elements<TypeParam>(n, 1), residual = random_elements<TypeParam>(n, 2),
                                 bias = random_elements<TypeParam>(shape.cols, 3);
    const std::vector<float> factors = random_elements<float>(shape.cols, 4);
    for (const bool with_bias : {false, true}) {
      for (const bool with_residual : {false, true}) {
        Values right(static_cast<size_t>(n)), error(right.size());
        for (size_t i = 0; i < right.size(); ++i) {
          const size_t c = i % static_cast<size_t>(shape.cols);
          const double product = static_cast<double>(factors[c]) * static_cast<double>(to_float(x[i])),
                       b = with_bias ? to_float(bias[c]) : 0, r = with_residual ? to_float(residual[i]) : 0;
          right[i] = product + b + r;
          error[i] = 3 * kUnitF32 * (std::abs(product) + std::abs(b) + std::abs(r));
        }
        std::vector<TypeParam> y(x.size()), in_place = x;
        ColumnScale<TypeParam> args{.x = x.data(),
                                    .factors = factors.data(),
                                    .bias = with_bias ? bias.data() : nullptr,
                                    .residual = with_residual ? residual.data() : nullptr,
                                    .y = y.data(),
                                    .rows = shape.rows,
                                    .cols = shape.cols,
                                    .num_threads = 2};
        scale_columns(args);
        expect_within(y, right, error, "scaled columns");
        args.x = args.y = in_place.data();
        scale_columns(args);
        EXPECT_TRUE(bytes_of(in_place) == bytes_of(y));
      }
    }
  }
}

// Columns 2 to cols + 2 of matrices that are 5 columns wider.
TYPED_TEST(ColumnScaling, DotsColumns) {
  for (const Shape shape : shapes()) {
    const int64_t stride = shape.cols + 5;
    const std::vector<TypeParam> a = random_elements<TypeParam>(shape.rows * stride, 1),
                                 b = random_elements<TypeParam>(shape.rows * stride, 2);
    const std::vector<float> factors = random_elements<float>(shape.cols, 3);
    Values sum(static_cast<size_t>(shape.cols)), error(sum.size());
    for (int64_t r = 0; r < shape.rows; ++r) {
      for (int64_t c = 0; c < shape.cols; ++c) {
        const auto at = static_cast<size_t>(r * stride + 2 + c), column = static_cast<size_t>(c);
        const double term = static_cast<double>(factors[column]) * static_cast<double>(to_float(a[at])) *
                            static_cast<double>(to_float(b[at]));
        sum[column] += term;
        error[column] += 66 * kUnitF32 * std::abs(term);  // 64 rows a block, the product and the factor in fp32
      }
    }
    for (const TargetKind kind : kTargetKinds) {
      GradBuffer target(shape.cols, kind.type, kind.mode);
      std::vector<std::byte> scratch(static_cast<size_t>(column_dot_scratch_bytes(shape.rows, shape.cols)));
      column_dot(ColumnDot<TypeParam>{.a = a.data() + 2,
                                      .b = b.data() + 2,
                                      .rows = shape.rows,
                                      .cols = shape.cols,
                                      .stride = stride,
                                      .factors = factors.data(),
                                      .target = target.target(),
                                      .scratch = scratch.data(),
                                      .num_threads = 2});
      target.expect(sum, error, "column dot");
    }
  }
}

TYPED_TEST(ColumnScaling, ThreadsChangeNoBit) {
  const std::vector<TypeParam> a = random_elements<TypeParam>(1000 * 77, 1),
                               b = random_elements<TypeParam>(1000 * 77, 2);
  const std::vector<float> factors = random_elements<float>(77, 3);
  expect_same_bits_for_any_threads([&](int num_threads) {
    std::vector<float> sum(77);
    std::vector<TypeParam> y(a.size());
    std::vector<std::byte> scratch(static_cast<size_t>(column_dot_scratch_bytes(1000, 77)));
    column_dot(ColumnDot<TypeParam>{.a = a.data(),
                                    .b = b.data(),
                                    .rows = 1000,
                                    .cols = 77,
                                    .stride = 77,
                                    .factors = factors.data(),
                                    .target = overwrite(sum.data()),
                                    .scratch = scratch.data(),
                                    .num_threads = num_threads});
    scale_columns(ColumnScale<TypeParam>{
        .x = a.data(), .factors = factors.data(), .y = y.data(), .rows = 1000, .cols = 77, .num_threads = num_threads});
    return bytes_of(sum, y);
  });
}

}  // namespace
}  // namespace fivefold::kernels
