#include "kernels/column_sum.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

template <class T>
class ColumnSum : public ::testing::Test {};
TYPED_TEST_SUITE(ColumnSum, ElementTypes);

TYPED_TEST(ColumnSum, AddsRows) {
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({70, 2500});
  for (const Shape shape : shapes) {
    const std::vector<TypeParam> x = random_elements<TypeParam>(shape.rows * shape.cols, 1);
    const Values values = read(x);
    for (const TargetKind kind : kTargetKinds) {
      GradBuffer target(shape.cols, kind.type, kind.mode);
      std::vector<std::byte> scratch(static_cast<size_t>(column_sum_scratch_bytes(shape.rows, shape.cols)));
      column_sum(x.data(), shape.rows, shape.cols, target.target(), scratch.data(), 2);
      Values sum(static_cast<size_t>(shape.cols)), error(sum.size());
      for (size_t i = 0; i < values.size(); ++i) {
        sum[i % sum.size()] += values[i];
        error[i % sum.size()] += 64 * kUnitF32 * std::abs(values[i]);  // 64 rows a block in fp32, then fp64
      }
      target.expect(sum, error, "column sum");
    }
  }
}

TYPED_TEST(ColumnSum, ThreadsChangeNoBit) {
  const std::vector<TypeParam> x = random_elements<TypeParam>(1000 * 77, 1);
  expect_same_bits_for_any_threads([&](int num_threads) {
    std::vector<float> sum(77);
    std::vector<std::byte> scratch(static_cast<size_t>(column_sum_scratch_bytes(1000, 77)));
    column_sum(x.data(), 1000, 77, overwrite(sum.data()), scratch.data(), num_threads);
    return bytes_of(sum);
  });
}

}  // namespace
}  // namespace fivefold::kernels
