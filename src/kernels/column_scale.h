// A factor for each column of a matrix: outputs of a DoRA linear, whose rows of the weight have lengths of their own,
// and the gradients of such factors.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

// y[r, c] = factors[c] x[r, c] (+ bias[c]) (+ residual[r, c]), in fp32, rounded once. Contiguous [rows, cols]; y may be
// x or residual; bias and residual may be null.
template <class T>
struct ColumnScale {
  const T* x = nullptr;
  const float* factors = nullptr;
  const T* bias = nullptr;
  const T* residual = nullptr;
  T* y = nullptr;
  int64_t rows = 0, cols = 0;
  int num_threads = 1;
};
template <class T>
void scale_columns(const ColumnScale<T>& args);

// target[c] (=, +=) factors[c] x (sum over r of a[r, c] b[r, c]), for matrices [rows, cols] whose rows are `stride`
// elements apart. Partial sums per block of rows in fp32, blocks added in order in fp64. `scratch`:
// column_dot_scratch_bytes(rows, cols), aligned for float.
template <class T>
struct ColumnDot {
  const T* a = nullptr;
  const T* b = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;
  const float* factors = nullptr;
  GradTarget target;
  void* scratch = nullptr;
  int num_threads = 1;
};
template <class T>
void column_dot(const ColumnDot<T>& args);

int64_t column_dot_scratch_bytes(int64_t rows, int64_t cols);

}  // namespace fivefold::kernels
