// The soft cap on tensors, as engine/layers/primitives.h wraps its kernels, against the gradient that libtorch derives
// from the definition.
#include <cstdio>

#include "engine/tensors.h"
#include "softcap.h"

namespace {

// y [T, n] = soft cap of x [T, n].
void softcap_forward(const at::Tensor& x, double cap, at::Tensor& y, int threads) {
  fivefold::visit_dtype(x, [&]<class T>(std::type_identity<T>) {
    softcap::forward(fivefold::elements<T>(x), fivefold::elements<T>(y), x.numel(), static_cast<float>(cap), threads);
  });
}

// dy becomes the gradient of x.
void softcap_backward(const at::Tensor& x, double cap, at::Tensor& dy, int threads) {
  fivefold::visit_dtype(x, [&]<class T>(std::type_identity<T>) {
    softcap::backward(fivefold::elements<T>(x), fivefold::elements<T>(dy), x.numel(), static_cast<float>(cap), threads);
  });
}

bool close(const char* what, const at::Tensor& actual, const at::Tensor& right, double allowed) {
  const double error = (actual.to(at::kDouble) - right).norm().item<double>() / right.norm().item<double>();
  std::printf("%s: error %.1e of %.1e allowed: %s\n", what, error, allowed, error <= allowed ? "ok" : "WRONG");
  return error <= allowed;
}

bool test(fivefold::DType dtype, double allowed) {
  constexpr double kCap = 30;
  const at::Tensor x = (at::randn({37, 512}, at::detail::createCPUGenerator(20)) * 40).to(fivefold::scalar_type(dtype));
  const at::Tensor leaf = x.to(at::kDouble).requires_grad_(true);
  const at::Tensor right = kCap * at::tanh(leaf / kCap);
  const at::Tensor dy = at::randn_like(x);
  right.backward(dy.to(at::kDouble));

  // Memory with a named account, as the engine allocates it.
  at::Tensor y = fivefold::allocate(fivefold::Account::kActivations, x.sizes(), dtype);
  at::Tensor dx = dy.clone();
  softcap_forward(x, kCap, y, 2);
  softcap_backward(x, kCap, dx, 2);
  return close("value", y, right.detach(), allowed) && close("gradient", dx, leaf.grad(), allowed);
}

}  // namespace

int main() { return test(fivefold::DType::kFloat32, 1e-6) && test(fivefold::DType::kBFloat16, 0x1p-8) ? 0 : 1; }
