#include "engine/ops/matrix_product.h"

#include <algorithm>

#include "kernels/instruction_set.h"

// Torch's door to oneDNN's products. Its library exports it, its headers do not show it: where another Torch has it no
// more, the address is null. result = alpha mat1 mat2 + beta result.
namespace at::native {
__attribute__((weak)) void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta,
                                         float alpha);
}  // namespace at::native

namespace fivefold::ops {
namespace {

// ATen multiplies bf16 with oneDNN itself, but fp32 with MKL.
bool with_onednn(const at::Tensor& a, const at::Tensor& b) {
  // From this many multiplications on oneDNN's search for its kernel, 10 to 20 us, is paid back.
  constexpr int64_t kLeastWork = int64_t{1} << 24;
  // A product of one row that is added to its result writes beyond it when k is long and b transposed (oneDNN 3.12).
  constexpr int64_t kLeastExtent = 16;
  static const bool usable =
      at::native::mkldnn_matmul != nullptr && at::hasMKLDNN() && kernels::instruction_set() == "x86-64-v4";
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  return usable && a.scalar_type() == at::kFloat && m * k * n >= kLeastWork && std::min({m, k, n}) >= kLeastExtent;
}

}  // namespace

void matrix_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& start, const at::Tensor& out) {
  at::Tensor result = out;
  if (with_onednn(a, b)) {
    if (start.defined() && !start.is_same(out)) result.copy_(start.expand_as(result));
    at::native::mkldnn_matmul(a, b, result, start.defined() ? 1.0f : 0.0f, 1.0f);
  } else if (start.defined()) {
    at::addmm_out(result, start, a, b);
  } else {
    at::mm_out(result, a, b);
  }
}

void scaled_matrix_product(const at::Tensor& a, const at::Tensor& b, double alpha, const at::Tensor& start,
                           const at::Tensor& out) {
  at::Tensor result = out;
  at::addmm_out(result, start.defined() ? start : out, a, b, start.defined() ? 1.0 : 0.0, alpha);
}

}  // namespace fivefold::ops
