// Sums over the rows of a matrix: bias gradients.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

// target[c] (=, +=) sum over r of x[r, c], for contiguous x [rows, cols]. Partial sums per block of rows in fp32,
// blocks added in order in fp64. `scratch`: column_sum_scratch_bytes(rows, cols), aligned for float.
template <class T>
void column_sum(const T* x, int64_t rows, int64_t cols, GradTarget target, void* scratch, int num_threads);

int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols);

}  // namespace fivefold::kernels
