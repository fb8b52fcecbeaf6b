// One row times a matrix: the linears of a model that makes one token after the other, where every weight is read once
// for two operations and memory is all that counts.
//
//   out[i] = sum over c of weight[i, c] x[c] (+ bias[i]) (+ residual[i])
//
// The sum is fp32 and rounded once. A row of the weight is summed by one thread in one order, so results do not depend
// on num_threads. Thread-safe.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

template <class T>
struct RowProduct {
  const T* x = nullptr;         // [cols]
  const T* weight = nullptr;    // [rows, cols]
  const T* bias = nullptr;      // [rows] or null
  const T* residual = nullptr;  // [rows] or null; may be `out`
  void* out = nullptr;          // [rows]
  ElementType out_type = kElementTypeOf<T>;
  float* scratch = nullptr;  // [cols], where T is not fp32
  int64_t rows = 0;
  int64_t cols = 0;
  int num_threads = 1;
};
// REQUIRES: out_type is T's or fp32.
template <class T>
void row_product(const RowProduct<T>&);

}  // namespace fivefold::kernels
