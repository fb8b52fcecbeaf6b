#include "softcap.h"

#include <cmath>

#include "kernels/clones.h"
#include "kernels/parallel.h"
#include "kernels/vector_math.h"

namespace softcap {
namespace {

using fivefold::kernels::exp_f32;
using fivefold::kernels::for_each_block;
using fivefold::kernels::from_float;
using fivefold::kernels::kBlockElements;
using fivefold::kernels::to_float;

// With e = exp(-2 |u|), tanh |u| = (1 - e) / (1 + e). Below 0.3 the subtraction would cancel, and the series up to u^9
// is used: its first missing term is 1382/155925 u^10 = 5e-8 of the value there. Both are computed and one is chosen,
// so that the loop stays vectorised.
FIVEFOLD_INLINE float tanh_f32(float u) {
  const float magnitude = std::fabs(u), square = u * u;
  const float e = exp_f32(-2.0f * magnitude);
  const float large = std::copysign((1.0f - e) / (1.0f + e), u);
  const float series =
      1.0f + square * (-1.0f / 3 + square * (2.0f / 15 + square * (-17.0f / 315 + square * (62.0f / 2835))));
  return magnitude < 0.3f ? u * series : large;
}

// 1 - tanh(u)^2 = 4 e / (1 + e)^2, which does not cancel anywhere.
FIVEFOLD_INLINE float tanh_derivative_f32(float u) {
  const float e = exp_f32(-2.0f * std::fabs(u));
  return 4.0f * e / ((1.0f + e) * (1.0f + e));
}

template <class T>
FIVEFOLD_CLONES void forward_range(const T* x, T* y, int64_t n, float cap) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = from_float<T>(cap * tanh_f32(to_float(x[i]) / cap));
}

template <class T>
FIVEFOLD_CLONES void backward_range(const T* x, T* grad, int64_t n, float cap) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    grad[i] = from_float<T>(to_float(grad[i]) * tanh_derivative_f32(to_float(x[i]) / cap));
}

}  // namespace

template <class T>
void forward(const T* x, T* y, int64_t n, float cap, int num_threads) {
  for_each_block(n, kBlockElements, num_threads,
                 [&](int64_t, int64_t begin, int64_t end) { forward_range(x + begin, y + begin, end - begin, cap); });
}

template <class T>
void backward(const T* x, T* grad, int64_t n, float cap, int num_threads) {
  for_each_block(n, kBlockElements, num_threads, [&](int64_t, int64_t begin, int64_t end) {
    backward_range(x + begin, grad + begin, end - begin, cap);
  });
}

template void forward(const float*, float*, int64_t, float, int);
template void forward(const fivefold::kernels::BFloat16*, fivefold::kernels::BFloat16*, int64_t, float, int);
template void forward(const fivefold::kernels::Float16*, fivefold::kernels::Float16*, int64_t, float, int);
template void backward(const float*, float*, int64_t, float, int);
template void backward(const fivefold::kernels::BFloat16*, fivefold::kernels::BFloat16*, int64_t, float, int);
template void backward(const fivefold::kernels::Float16*, fivefold::kernels::Float16*, int64_t, float, int);

}  // namespace softcap
