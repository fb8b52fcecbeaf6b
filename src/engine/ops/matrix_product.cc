#include "engine/ops/matrix_product.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/elementwise.h"
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

// Widens a block of an fp16 operand, contiguous rows or columns, into `buffer`; returns it as fp32 of the same layout.
at::Tensor widened(const at::Tensor& block, const at::Tensor& buffer) {
  const bool transposed = block.stride(1) != 1 && block.stride(0) == 1;
  const at::Tensor rows = transposed ? block.t() : block;
  kernels::convert_rows(static_cast<const kernels::Float16*>(rows.const_data_ptr()), rows.stride(0),
                        elements<float>(buffer), rows.size(1), rows.size(0), rows.size(1), at::get_num_threads());
  const at::Tensor wide = buffer.narrow(0, 0, rows.numel()).view(rows.sizes());
  return transposed ? wide.t() : wide;
}

// Products of fp16 in blocks that are widened to fp32, summed there over all of k and rounded once: no sum overflows
// that the result does not. ATen's own product of halves sums in fp32 too, but takes 6 (256^3, b transposed) to 200
// (512^3) times as long as one of fp32 on a processor without fp16 arithmetic. Of a block's time the conversions are
// about 3 %; blocks are 3 MiB of workspace.
void half_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& start, const at::Tensor& out) {
  constexpr int64_t kRows = 512, kColumns = 512, kDepth = 512;
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const int64_t rows = std::min(m, kRows), columns = std::min(n, kColumns), depth = std::min(k, kDepth);
  const auto buffer = [](int64_t numel) { return allocate(Account::kWorkspace, {numel}, DType::kFloat32); };
  const at::Tensor left = buffer(rows * depth), right = buffer(depth * columns), sums = buffer(rows * columns);
  const at::Tensor whole_start = start.defined() ? start.expand_as(out) : at::Tensor();
  for (int64_t column = 0; column < n; column += kColumns) {
    const int64_t width = std::min(kColumns, n - column);
    for (int64_t row = 0; row < m; row += kRows) {
      const int64_t height = std::min(kRows, m - row);
      const at::Tensor sum = sums.narrow(0, 0, height * width).view({height, width});
      const auto block_of = [&](const at::Tensor& matrix) {
        return matrix.narrow(0, row, height).narrow(1, column, width);
      };
      if (start.defined()) at::Tensor(sum).copy_(block_of(whole_start));
      for (int64_t first = 0; first < k; first += kDepth) {
        const int64_t terms = std::min(kDepth, k - first);
        matrix_product(widened(a.narrow(0, row, height).narrow(1, first, terms), left),
                       widened(b.narrow(0, first, terms).narrow(1, column, width), right),
                       start.defined() || first > 0 ? sum : at::Tensor(), sum);
      }
      const at::Tensor target = block_of(out);
      kernels::convert_rows(elements<float>(sum), width, static_cast<kernels::Float16*>(target.data_ptr()),
                            target.stride(0), height, width, at::get_num_threads());
    }
  }
}

}  // namespace

void matrix_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& start, const at::Tensor& out) {
  at::Tensor result = out;
  if (out.scalar_type() == at::kHalf) return half_product(a, b, start, out);
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
