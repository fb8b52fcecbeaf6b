#include "kernels/qk_norm.h"

#include <cmath>

#include "kernels/clones.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {
namespace {

// Fewer rows a block than elsewhere: every head of a row adds to the same weight gradient.
constexpr int64_t kQkBlockRows = 16;

template <class T>
FIVEFOLD_INLINE float forward_head(T* head, const T* weight, T* pre_norm, int64_t dim, float eps, float offset) {
  std::copy_n(head, dim, pre_norm);  // not within the loop below, which it keeps from being vectorised
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < dim; ++i) squares += to_float(head[i]) * to_float(head[i]);
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(dim) + eps);
#pragma omp simd
  for (int64_t i = 0; i < dim; ++i) {
    head[i] = from_float<T>(to_float(head[i]) * rstd * (to_float(weight[i]) + offset));
  }
  return rstd;
}

template <class T>
FIVEFOLD_CLONES void forward_rows(const QkNormForward<T>& a, int64_t begin, int64_t end) {
  const float offset = a.weight_kind == NormWeight::kPlusOne ? 1.0f : 0.0f;
  const int64_t heads = a.num_q_heads + a.num_kv_heads;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      const T* weight = h < a.num_q_heads ? a.q_weight : a.k_weight;
      a.rstd[r * heads + h] = forward_head(a.qkv + r * a.row_stride + h * a.head_dim, weight,
                                           a.pre_norm + (r * heads + h) * a.head_dim, a.head_dim, a.eps, offset);
    }
  }
}

template <class T>
FIVEFOLD_INLINE void backward_head(T* grad, const T* weight, const T* pre_norm, float rstd, int64_t dim, float offset,
                                   float* dw) {
  float sum_g_xhat = 0;
#pragma omp simd reduction(+ : sum_g_xhat)
  for (int64_t i = 0; i < dim; ++i) {
    sum_g_xhat += to_float(grad[i]) * (to_float(weight[i]) + offset) * (to_float(pre_norm[i]) * rstd);
  }
  const float mean_g_xhat = sum_g_xhat / static_cast<float>(dim);
#pragma omp simd
  for (int64_t i = 0; i < dim; ++i) {
    const float dy = to_float(grad[i]);
    const float xhat = to_float(pre_norm[i]) * rstd;
    grad[i] = from_float<T>(rstd * (dy * (to_float(weight[i]) + offset) - xhat * mean_g_xhat));
    dw[i] += dy * xhat;
  }
}

// One block of rows; `partial` holds its dw of the query heads [head_dim], then that of the key heads [head_dim].
template <class T>
FIVEFOLD_CLONES void backward_rows(const QkNormBackward<T>& a, int64_t begin, int64_t end, float* partial) {
  const float offset = a.weight_kind == NormWeight::kPlusOne ? 1.0f : 0.0f;
  const int64_t heads = a.num_q_heads + a.num_kv_heads;
  std::fill_n(partial, 2 * a.head_dim, 0.0f);
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      const bool is_query = h < a.num_q_heads;
      backward_head(a.dqkv + r * a.row_stride + h * a.head_dim, is_query ? a.q_weight : a.k_weight,
                    a.pre_norm + (r * heads + h) * a.head_dim, a.rstd[r * heads + h], a.head_dim, offset,
                    is_query ? partial : partial + a.head_dim);
    }
  }
}

}  // namespace

template <class T>
void qk_norm_forward(const QkNormForward<T>& a) {
  FIVEFOLD_CHECK((a.num_q_heads + a.num_kv_heads) * a.head_dim <= a.row_stride);
  for_each_block(a.rows, kQkBlockRows, a.num_threads,
                 [&](int64_t, int64_t begin, int64_t end) { forward_rows(a, begin, end); });
}

template <class T>
void qk_norm_backward(const QkNormBackward<T>& a) {
  FIVEFOLD_CHECK((a.num_q_heads + a.num_kv_heads) * a.head_dim <= a.row_stride);
  const int64_t stride = 2 * a.head_dim;
  float* partials = static_cast<float*>(a.scratch);
  for_each_block(a.rows, kQkBlockRows, a.num_threads, [&](int64_t block, int64_t begin, int64_t end) {
    backward_rows(a, begin, end, partials + block * stride);
  });
  const int64_t num_blocks = div_ceil(a.rows, kQkBlockRows);
  reduce_partials(partials, num_blocks, stride, a.head_dim, a.q_weight_grad, a.num_threads);
  reduce_partials(partials + a.head_dim, num_blocks, stride, a.head_dim, a.k_weight_grad, a.num_threads);
}

template void qk_norm_forward(const QkNormForward<float>&);
template void qk_norm_forward(const QkNormForward<BFloat16>&);
template void qk_norm_forward(const QkNormForward<Float16>&);
template void qk_norm_backward(const QkNormBackward<float>&);
template void qk_norm_backward(const QkNormBackward<BFloat16>&);
template void qk_norm_backward(const QkNormBackward<Float16>&);

int64_t qk_norm_backward_scratch_bytes(int64_t rows, int64_t head_dim) {
  return div_ceil(rows, kQkBlockRows) * 2 * head_dim * int64_t{sizeof(float)};
}

}  // namespace fivefold::kernels
