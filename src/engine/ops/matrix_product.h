// Matrix products, on the faster of the two libraries that Torch brings.
#pragma once

#include "engine/tensors.h"

namespace fivefold::ops {

// out [m, n] = a [m, k] b [k, n] (+ start: [m, n], [n], or `out` itself; undefined: nothing). a and b are contiguous or
// transposed views of contiguous tensors, out is contiguous; all of one type,
// fp32, bf16 or fp16.
void matrix_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& start, const at::Tensor& out);
// out = alpha a b (+ start), scaled before it is rounded to out's type.
void scaled_matrix_product(const at::Tensor& a, const at::Tensor& b, double alpha, const at::Tensor& start,
                           const at::Tensor& out);

}  // namespace fivefold::ops
