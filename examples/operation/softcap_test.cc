// The soft cap against the definition in fp64, its gradient against central differences of that definition.
#include "softcap.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

using fivefold::kernels::from_float;
using fivefold::kernels::to_float;

constexpr double kCap = 30;
constexpr double kStep = 1e-4;
// Over several blocks, the last one short of a vector.
constexpr int64_t kCount = 50'003;

double softcap(double x) { return kCap * std::tanh(x / kCap); }

// Largest errors of values and gradients, each in units of the right one, over inputs in [-90, 90], where the gradient
// falls to 0.01. The gradient that comes in is 0.5.
template <class T>
bool test(const char* type, double allowed) {
  std::vector<T> x(kCount), y(kCount), grad(kCount, from_float<T>(0.5f));
  for (int64_t i = 0; i < kCount; ++i)
    x[i] = from_float<T>(static_cast<float>(180.0 * static_cast<double>(i) / kCount - 90.0));
  softcap::forward(x.data(), y.data(), kCount, static_cast<float>(kCap), 2);
  softcap::backward(x.data(), grad.data(), kCount, static_cast<float>(kCap), 2);
  double value_error = 0, gradient_error = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double at = to_float(x[i]), value = softcap(at);
    // Rounding of the difference: 2^-53 x 30 / 1e-4 = 3e-11. Truncation: f''' kStep^2 / 6, below 1e-11 of f'.
    const double slope = (softcap(at + kStep) - softcap(at - kStep)) / (2 * kStep);
    if (value != 0) value_error = std::max(value_error, std::fabs(to_float(y[i]) / value - 1));
    gradient_error = std::max(gradient_error, std::fabs(to_float(grad[i]) / (0.5 * slope) - 1));
  }
  const bool ok = value_error <= allowed && gradient_error <= allowed;
  std::printf("%s: value %.1e, gradient %.1e of %.1e allowed: %s\n", type, value_error, gradient_error, allowed,
              ok ? "ok" : "WRONG");
  return ok;
}

}  // namespace

int main() {
  // fp32: exp within 2 ulp, its argument up to 6 rounded (6 x 2^-24), and eight more roundings: 16 x 2^-24. bf16: the
  // same, then rounded to 8 bits, 2^-8 at worst.
  const double fp32_error = 16 * 0x1p-24;
  const bool fp32 = test<float>("fp32", fp32_error);
  const bool bf16 = test<fivefold::kernels::BFloat16>("bf16", 0x1p-8 + fp32_error);
  return fp32 && bf16 ? 0 : 1;
}
