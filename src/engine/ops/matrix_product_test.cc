// Products of every layout that layers use against ATen in fp64, at sizes on both sides of the switch between libraries
// and at extents that no tile divides.
#include "engine/ops/matrix_product.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fivefold::ops {
namespace {

struct Case {
  int64_t m, k, n;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.m << "x" << c.k << "x" << c.n; }

class MatrixProduct : public ::testing::TestWithParam<std::tuple<Case, at::ScalarType>> {};

// Error of one element of sum and start, each of a few units: a chain of k roundings that add up like a random walk,
// one rounding at the end, and in bf16 and fp16 one more, to 8 and 11 bits.
double allowed(int64_t k, at::ScalarType type) {
  const double size = 6 * std::sqrt(static_cast<double>(k)) + 6;
  const double rounding = type == at::kFloat ? 0 : type == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
  return size * (0x1p-24 * (std::sqrt(static_cast<double>(k)) + 1) + rounding);
}

TEST_P(MatrixProduct, EqualsAtenInDoublePrecision) {
  const auto& [size, type] = GetParam();
  const auto [m, k, n] = size;
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(m * 31 + k * 7 + n));
  const auto random = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::TensorOptions().dtype(at::kFloat)).to(type);
  };
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      const at::Tensor a = a_transposed ? random({k, m}).t() : random({m, k});
      const at::Tensor b = b_transposed ? random({n, k}).t() : random({k, n});
      const at::Tensor product = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      const at::Tensor matrix = random({m, n}), row = random({n});
      for (const at::Tensor& start : {at::Tensor(), matrix, row}) {
        constexpr int64_t kGuard = 4096;  // elements on both sides that must stay as they are
        const at::Tensor around = at::full({m * n + 2 * kGuard}, 3.0, at::TensorOptions().dtype(type));
        const at::Tensor out = around.narrow(0, kGuard, m * n).view({m, n}).fill_(NAN);
        matrix_product(a, b, start, out);
        const at::Tensor right = start.defined() ? product + start.to(at::kDouble) : product;
        EXPECT_LE((out.to(at::kDouble) - right).abs().max().item<double>(), allowed(k, type))
            << a_transposed << b_transposed << (start.defined() ? start.dim() : 0);
        out.fill_(3.0);
        EXPECT_TRUE(around.eq(3.0).all().item<bool>());
      }
      const at::Tensor out = matrix.clone();
      matrix_product(a, b, out, out);
      EXPECT_LE((out.to(at::kDouble) - product - matrix.to(at::kDouble)).abs().max().item<double>(), allowed(k, type))
          << a_transposed << b_transposed << "onto itself";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, MatrixProduct,
                         ::testing::Combine(::testing::Values(Case{1, 1, 1}, Case{7, 13, 5}, Case{64, 48, 80},
                                                              Case{257, 255, 259}, Case{300, 64, 1001},
                                                              Case{1, 5000, 4001}, Case{1000, 3, 6007},
                                                              Case{16, 4000, 300}, Case{19, 2049, 515}),
                                            ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf)));

// 2048 terms of 16 x 16 are 2^19, beyond the largest fp16, 65504; as many negative ones bring the sum back. In fp16 it
// would have become infinite, and ones added to 2048 would have been lost.
TEST(MatrixProductOfHalves, SumsInFp32AndRoundsOnce) {
  const auto filled = [](at::IntArrayRef sizes, double value) {
    return at::full(sizes, value, at::TensorOptions().dtype(at::kHalf));
  };
  const at::Tensor out = filled({20, 30}, 0);
  at::Tensor a = filled({20, 4096}, 16);
  a.narrow(1, 2048, 2048).fill_(-16);
  a.narrow(1, 0, 128).fill_(32);  // 128 terms of 256 more: 2^15
  matrix_product(a, filled({4096, 30}, 16), at::Tensor(), out);
  EXPECT_TRUE(out.eq(32768).all().item<bool>());
  matrix_product(filled({20, 4096}, 1), filled({4096, 30}, 1), at::Tensor(), out);
  EXPECT_TRUE(out.eq(4096).all().item<bool>());
  matrix_product(filled({20, 4096}, 16), filled({4096, 30}, 16), at::Tensor(), out);
  EXPECT_TRUE(out.isinf().all().item<bool>());
}

}  // namespace
}  // namespace fivefold::ops
