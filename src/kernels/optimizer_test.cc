#include "kernels/optimizer.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

// Three steps from these weights with these gradients; results in fp64 by torch.optim of PyTorch 2.13.0.
const Values kStart = {0.5, -1.25, 2.0, 0.0};
const std::vector<Values> kGrads = {{0.1, -0.2, 0.3, 0.0}, {-0.4, 0.05, 0.25, 1.0}, {0.02, 0.6, -0.5, -2.0}};

void expect_values(const std::vector<float>& actual, const Values& expected, double tolerance) {
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], tolerance) << "element " << i;
}

std::vector<float> adamw_by_steps(AdamW<float> args, std::vector<float>& m, std::vector<float>& v) {
  std::vector<float> param = rounded<float>(kStart);
  args.param = param.data();
  args.m = m.data();
  args.v = v.data();
  args.n = 4;
  for (const Values& step_grad : kGrads) {
    // Halved here and doubled by grad_scale: both exact.
    Values halved = step_grad;
    for (double& value : halved) value /= 2;
    const std::vector<float> grad = rounded<float>(halved);
    args.grad = grad.data();
    args.grad_scale = 2;
    ++args.step;
    adamw_step(args);
  }
  return param;
}

// Parameters are at most 2, so three steps round by a few units of 2^-23; the second moments are small.
TEST(AdamWOracle, MatchesTorchWithDecay) {
  std::vector<float> m(4), v(4);
  const auto param = adamw_by_steps({.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}, m, v);
  expect_values(param, {0.4980674925241945, -1.236299419383658, 1.9744207481021996, -0.00426095291634109}, 5e-7);
  expect_values(m, {-0.0259, 0.0483, -0.0032, -0.11}, 5e-8);
  expect_values(v, {0.00807125, 0.01992375, 0.01953, 0.2475}, 5e-8);
}

TEST(AdamWOracle, MatchesTorchWithLargeEpsilon) {
  std::vector<float> m(4), v(4);
  const auto param = adamw_by_steps({.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-3}, m, v);
  expect_values(param, {0.4996683909540039, -1.240237704717549, 1.9804786918835635, -0.004290431936078006}, 5e-7);
}

std::vector<float> sgd_by_steps(Sgd<float> args) {
  std::vector<float> param = rounded<float>(kStart);
  args.param = param.data();
  args.n = 4;
  for (const Values& step_grad : kGrads) {
    const std::vector<float> grad = rounded<float>(step_grad);
    args.grad = grad.data();
    sgd_step(args);
  }
  return param;
}

TEST(SgdOracle, MatchesTorch) {
  expect_values(sgd_by_steps({.lr = 0.1}), {0.528, -1.295, 1.995, 0.1}, 5e-7);
  std::vector<float> buffer(4);
  expect_values(sgd_by_steps({.momentum_buffer = buffer.data(), .lr = 0.1, .momentum = 0.9, .weight_decay = 0.05}),
                {0.5329246875, -1.2307418437499997, 1.866034, 0.0105}, 5e-7);
  expect_values(buffer, {-0.191121875, 0.3173559375, 0.23166, -1.105}, 5e-7);
}

template <class T>
class Optimizer : public ::testing::Test {};
TYPED_TEST_SUITE(Optimizer, ElementTypes);

// One step over lengths that no block divides, against the formula in fp64.
TYPED_TEST(Optimizer, AdamWStepsEveryElementAndWritesTheWorkingCopy) {
  for (const int64_t n : {1, 37, 40001}) {
    std::vector<float> param = random_elements<float>(n, 1), m = random_elements<float>(n, 2, 0.1);
    std::vector<float> v = random_elements<float>(n, 3, 0.01);
    for (float& value : v) value = std::abs(value);
    const std::vector<TypeParam> grad = random_elements<TypeParam>(n, 4);
    std::vector<BFloat16> working(static_cast<size_t>(n));
    Values expected, error;
    for (size_t i = 0; i < param.size(); ++i) {
      const double g = 0.25 * to_float(grad[i]);
      const double m_next = 0.9 * m[i] + 0.1 * g;
      const double v_next = 0.95 * v[i] + 0.05 * g * g;
      const double update = 0.01 / (1 - std::pow(0.9, 3)) / (std::sqrt(v_next / (1 - std::pow(0.95, 3))) + 1e-8);
      expected.push_back(param[i] * (1 - 0.01 * 0.1) - update * m_next);
      error.push_back(kUnitF32 * (4 * std::abs(expected.back()) + 12 * update * (std::abs(m[i]) + std::abs(g))));
    }
    adamw_step<TypeParam>({.param = param.data(),
                           .m = m.data(),
                           .v = v.data(),
                           .grad = grad.data(),
                           .param_bf16 = working.data(),
                           .n = n,
                           .grad_scale = 0.25f,
                           .lr = 0.01,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .step = 3,
                           .num_threads = 2});
    expect_within(param, expected, error, "AdamW");
    for (size_t i = 0; i < param.size(); ++i) EXPECT_EQ(working[i].bits, from_float<BFloat16>(param[i]).bits);
  }
}

TYPED_TEST(Optimizer, SgdStepsEveryElementAndWritesTheWorkingCopy) {
  for (const int64_t n : {1, 37, 40001}) {
    std::vector<float> param = random_elements<float>(n, 1), buffer = random_elements<float>(n, 2);
    const std::vector<TypeParam> grad = random_elements<TypeParam>(n, 4);
    std::vector<BFloat16> working(static_cast<size_t>(n));
    Values expected, error;
    for (size_t i = 0; i < param.size(); ++i) {
      const double next = 0.9 * buffer[i] + (0.25 * to_float(grad[i]) + 0.05 * param[i]);
      expected.push_back(param[i] - 0.1 * next);
      error.push_back(kUnitF32 * 8 * (std::abs(param[i]) + std::abs(buffer[i]) + std::abs(to_float(grad[i]))));
    }
    sgd_step<TypeParam>({.param = param.data(),
                         .momentum_buffer = buffer.data(),
                         .grad = grad.data(),
                         .param_bf16 = working.data(),
                         .n = n,
                         .grad_scale = 0.25f,
                         .lr = 0.1,
                         .momentum = 0.9,
                         .weight_decay = 0.05,
                         .num_threads = 2});
    expect_within(param, expected, error, "SGD");
    for (size_t i = 0; i < param.size(); ++i) EXPECT_EQ(working[i].bits, from_float<BFloat16>(param[i]).bits);
  }
}

TYPED_TEST(Optimizer, SumOfSquaresIsExactWhereFp64Is) {
  for (const int64_t n : {1, 4096, 4097, 50000}) {
    // Multiples of 2^-7 below 2: squares and sums have few bits, so fp64 adds them exactly in any order.
    const std::vector<int32_t> steps = random_indices(n, 256, 5);
    std::vector<TypeParam> x;
    double expected = 0;
    for (int32_t step : steps) {
      x.push_back(from_float<TypeParam>(static_cast<float>(step) * 0x1p-7f));
      expected += step * step * 0x1p-14;
    }
    std::vector<double> scratch(static_cast<size_t>(sum_of_squares_scratch_bytes(n)) / sizeof(double));
    EXPECT_EQ(sum_of_squares(x.data(), n, scratch.data(), 2), expected);
  }
}

TYPED_TEST(Optimizer, ThreadsChangeNoBit) {
  const int64_t n = 100003;
  const std::vector<TypeParam> grad = random_elements<TypeParam>(n, 4);
  expect_same_bits_for_any_threads([&](int num_threads) {
    std::vector<float> param = random_elements<float>(n, 1), m(param.size()), v(param.size());
    adamw_step<TypeParam>({.param = param.data(),
                           .m = m.data(),
                           .v = v.data(),
                           .grad = grad.data(),
                           .n = n,
                           .lr = 0.01,
                           .step = 1,
                           .num_threads = num_threads});
    std::vector<double> scratch(static_cast<size_t>(sum_of_squares_scratch_bytes(n)) / sizeof(double));
    const std::vector<double> norm = {sum_of_squares(param.data(), n, scratch.data(), num_threads)};
    return bytes_of(param, m, v, norm);
  });
}

}  // namespace
}  // namespace fivefold::kernels
