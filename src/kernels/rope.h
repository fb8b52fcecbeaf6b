// Rotary position embedding, in place on the leading heads of packed rows (query heads, then key heads; the value heads
// behind them stay as they are).
//
// Pairs are half-split: within the first `rotary_dim` elements of a head, element i turns with element
// i + rotary_dim/2 by the angle whose cosine and sine the tables hold:
//   x_i' = x_i cos - x_j sin,  x_j' = x_j cos + x_i sin.
// The tables may carry a factor (YaRN's attention scaling): the backward is the transpose of the forward, so it carries
// the same factor and the negative angle.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

enum class RopeDirection : uint8_t { kForward, kBackward };

template <class T>
struct Rope {
  T* packed = nullptr;                 // [rows, row_stride]
  const float* cos_table = nullptr;    // [positions, rotary_dim / 2]
  const float* sin_table = nullptr;    // [positions, rotary_dim / 2]
  const int32_t* positions = nullptr;  // [rows]: the table row of each packed row
  int64_t rows = 0;
  int64_t row_stride = 0;  // elements from one packed row to the next
  int64_t num_heads = 0;   // heads to turn
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;  // even, at most head_dim
  RopeDirection direction = RopeDirection::kForward;
  int num_threads = 1;
};
template <class T>
void rope(const Rope<T>&);

}  // namespace fivefold::kernels
