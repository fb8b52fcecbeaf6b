#include "kernels/rope.h"

#include "kernels/clones.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {
namespace {

template <class T>
FIVEFOLD_CLONES void rope_rows(const Rope<T>& a, int64_t begin, int64_t end) {
  const int64_t half = a.rotary_dim / 2;
  const float sign = a.direction == RopeDirection::kForward ? 1.0f : -1.0f;
  for (int64_t r = begin; r < end; ++r) {
    const float* cos_row = a.cos_table + a.positions[r] * half;
    const float* sin_row = a.sin_table + a.positions[r] * half;
    for (int64_t h = 0; h < a.num_heads; ++h) {
      T* first = a.packed + r * a.row_stride + h * a.head_dim;
      T* second = first + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float x = to_float(first[i]);
        const float y = to_float(second[i]);
        const float cosine = cos_row[i];
        const float sine = sign * sin_row[i];
        first[i] = from_float<T>(x * cosine - y * sine);
        second[i] = from_float<T>(y * cosine + x * sine);
      }
    }
  }
}

}  // namespace

template <class T>
void rope(const Rope<T>& a) {
  FIVEFOLD_CHECK(a.rotary_dim % 2 == 0 && a.rotary_dim <= a.head_dim && a.num_heads * a.head_dim <= a.row_stride);
  for_each_block(a.rows, independent_block_rows(a.num_heads * a.head_dim), a.num_threads,
                 [&](int64_t, int64_t begin, int64_t end) { rope_rows(a, begin, end); });
}

template void rope(const Rope<float>&);
template void rope(const Rope<BFloat16>&);
template void rope(const Rope<Float16>&);

}  // namespace fivefold::kernels
