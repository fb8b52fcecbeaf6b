#include "kernels/activation.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

double reference(Activation kind, double x) {
  switch (kind) {
    case Activation::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kSquaredRelu:
      return x > 0 ? x * x : 0;
  }
  return NAN;
}
constexpr Activation kAll[] = {Activation::kGeluTanh, Activation::kGeluErf, Activation::kSilu,
                               Activation::kSquaredRelu};

// Roundings of an activation with inputs up to 8: 12 of its own, and those of the argument of exp (up to 64 here),
// which exp turns from absolute into relative.
constexpr double kActivationUnit = (12 + 64) * kUnitF32;

template <class T>
class ActivationTest : public ::testing::Test {};
TYPED_TEST_SUITE(ActivationTest, ElementTypes);

// Values of the four functions at -3, -1, -0.5, 0.5, 1, 3 from a 30-digit computation.
TEST(ActivationReference, AgreesWithPublishedValues) {
  const double x[] = {-3, -1, -0.5, 0.5, 1, 3};
  const double expected[4][6] = {
      {-0.00363739208177, -0.158808009392, -0.154285990175, 0.345714009825, 0.841191990608, 2.99636260792},
      {-0.00404969409489, -0.158655253931, -0.154268769363, 0.345731230637, 0.841344746069, 2.99595030591},
      {-0.142277619533, -0.26894142137, -0.188770334399, 0.311229665601, 0.73105857863, 2.85772238047},
      {0, 0, 0, 0.25, 1, 9}};
  for (int kind = 0; kind < 4; ++kind) {
    for (int i = 0; i < 6; ++i) EXPECT_NEAR(reference(kAll[kind], x[i]), expected[kind][i], 1e-11);
  }
}

TYPED_TEST(ActivationTest, ForwardMatchesTheDefinition) {
  for (const Activation kind : kAll) {
    for (const int64_t n : {1, 17, 40000}) {
      const std::vector<TypeParam> x = random_elements<TypeParam>(n, 1, 8.0);
      std::vector<TypeParam> y(x.size());
      activation_forward(kind, x.data(), y.data(), n, 2);
      Values expected, error;
      for (double value : read(x)) {
        expected.push_back(reference(kind, value));
        error.push_back(kActivationUnit * (1 + std::abs(expected.back())));
      }
      expect_within(y, expected, error, "activation " + std::to_string(static_cast<int>(kind)));
    }
  }
}

TYPED_TEST(ActivationTest, BackwardMatchesFiniteDifferences) {
  for (const Activation kind : kAll) {
    for (const int64_t n : {1, 17, 40000}) {
      const std::vector<TypeParam> x = random_elements<TypeParam>(n, 1, 8.0);
      std::vector<TypeParam> grad = x, dy_then_y = random_elements<TypeParam>(n, 2), y(x.size());
      const Values dy = read(dy_then_y);
      activation_backward(kind, grad.data(), dy_then_y.data(), n, 2);
      activation_forward(kind, x.data(), y.data(), n, 2);
      EXPECT_TRUE(bytes_of(dy_then_y) == bytes_of(y)) << "the output of the backward is not the forward's";
      Values expected, error;
      for (double value : read(x)) {
        const double slope =
            gradient_by_differences({value}, [&](const Values& point) { return reference(kind, point[0]); })[0];
        const double d = dy[expected.size()];
        // The square of the relu has a kink in its slope: differences across it are off by their step.
        const double kink = kind == Activation::kSquaredRelu && std::abs(value) < 2e-3 ? 4e-3 : 1e-9;
        expected.push_back(d * slope);
        error.push_back(std::abs(d) * (kActivationUnit * (8 + std::abs(slope)) + kink));
      }
      expect_within(grad, expected, error, "activation " + std::to_string(static_cast<int>(kind)) + " backward");
    }
  }
}

TYPED_TEST(ActivationTest, SwigluMatchesTheDefinitionAndFiniteDifferences) {
  for (const Shape shape : kShapes) {
    const int64_t width = shape.cols;
    std::vector<TypeParam> gate_up = random_elements<TypeParam>(shape.rows * 2 * width, 1, 8.0);
    std::vector<TypeParam> dact = random_elements<TypeParam>(shape.rows * width, 2);
    const Values x = read(gate_up);
    const Values d = read(dact);
    std::vector<TypeParam> act(dact.size());
    swiglu_forward(gate_up.data(), act.data(), shape.rows, width, 2);

    Values act_expected, act_error, grad_expected(x.size()), grad_error(x.size());
    for (int64_t r = 0; r < shape.rows; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        const size_t gate = static_cast<size_t>(r * 2 * width + i);
        const size_t up = gate + static_cast<size_t>(width);
        const double out_grad = d[static_cast<size_t>(r * width + i)];
        const auto value = [](const Values& p) { return reference(Activation::kSilu, p[0]) * p[1]; };
        act_expected.push_back(value({x[gate], x[up]}));
        act_error.push_back(kActivationUnit * std::abs(x[gate] * x[up]));
        const Values slopes = gradient_by_differences({x[gate], x[up]}, value);
        grad_expected[gate] = out_grad * slopes[0];
        grad_expected[up] = out_grad * slopes[1];
        grad_error[gate] = std::abs(out_grad) * (kActivationUnit * std::abs(x[up]) * (1 + std::abs(x[gate])) + 1e-9);
        grad_error[up] = std::abs(out_grad) * (kActivationUnit * std::abs(x[gate]) + 1e-9);
      }
    }
    expect_within(act, act_expected, act_error, "SwiGLU");
    swiglu_backward(gate_up.data(), dact.data(), shape.rows, width, 2);
    expect_within(gate_up, grad_expected, grad_error, "SwiGLU backward");
    EXPECT_TRUE(bytes_of(dact) == bytes_of(act)) << "the product of the backward is not the forward's";
  }
}

TYPED_TEST(ActivationTest, HugeInputsGiveTheLimits) {
  const std::vector<TypeParam> x = rounded<TypeParam>({std::is_same_v<TypeParam, Float16> ? -65504 : -1e30, -200, 200});
  for (const Activation kind : kAll) {
    std::vector<TypeParam> y(3);
    std::vector<TypeParam> grad = x, dy = rounded<TypeParam>({1, 1, 1});
    activation_forward(kind, x.data(), y.data(), 3, 1);
    activation_backward(kind, grad.data() + 1, dy.data() + 1, 2, 1);
    EXPECT_EQ(to_float(y[0]), 0.0f);
    EXPECT_EQ(to_float(y[1]), 0.0f);
    EXPECT_EQ(to_float(y[2]), kind == Activation::kSquaredRelu ? to_float(from_float<TypeParam>(40000.0f)) : 200.0f);
    EXPECT_EQ(to_float(grad[1]), 0.0f);
    EXPECT_EQ(to_float(grad[2]), kind == Activation::kSquaredRelu ? 400.0f : 1.0f);
  }
}

TYPED_TEST(ActivationTest, ThreadsChangeNoBit) {
  expect_same_bits_for_any_threads([](int num_threads) {
    std::vector<TypeParam> gate_up = random_elements<TypeParam>(500 * 2 * 130, 1, 8.0);
    std::vector<TypeParam> dact = random_elements<TypeParam>(500 * 130, 2);
    std::vector<TypeParam> act(dact.size());
    swiglu_forward(gate_up.data(), act.data(), 500, 130, num_threads);
    swiglu_backward(gate_up.data(), dact.data(), 500, 130, num_threads);
    activation_forward(Activation::kGeluErf, act.data(), act.data(), 500 * 130, num_threads);
    return bytes_of(act, gate_up, dact);
  });
}

}  // namespace
}  // namespace fivefold::kernels
