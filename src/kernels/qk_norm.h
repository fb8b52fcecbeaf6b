// RMSNorm of every query and key head (Qwen3), in place on packed projections.
//
// A packed row holds `num_q_heads` query heads, then `num_kv_heads` key heads, then what is left alone (the value
// heads), each head `head_dim` contiguous elements. The forward keeps the values before the norm, because the rows
// themselves go on to RoPE and attention. Formulas in norm.h, with cols = head_dim and one weight for all query heads,
// one for all key heads.
#pragma once

#include <cstdint>

#include "kernels/element.h"
#include "kernels/norm.h"

namespace fivefold::kernels {

template <class T>
struct QkNormForward {
  T* qkv = nullptr;             // [rows, row_stride], normalised in place
  const T* q_weight = nullptr;  // [head_dim]
  const T* k_weight = nullptr;  // [head_dim]
  T* pre_norm = nullptr;        // [rows, (num_q_heads + num_kv_heads) head_dim], written
  float* rstd = nullptr;        // [rows, num_q_heads + num_kv_heads], written
  int64_t rows = 0;
  int64_t row_stride = 0;  // elements from one row of qkv to the next
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  float eps = 0;
  NormWeight weight_kind = NormWeight::kPlain;
  int num_threads = 1;
};
template <class T>
void qk_norm_forward(const QkNormForward<T>&);

template <class T>
struct QkNormBackward {
  T* dqkv = nullptr;              // [rows, row_stride], query and key gradients replaced by those before the norm
  const T* q_weight = nullptr;    // [head_dim]
  const T* k_weight = nullptr;    // [head_dim]
  const T* pre_norm = nullptr;    // as the forward wrote it
  const float* rstd = nullptr;    // as the forward wrote it
  GradTarget q_weight_grad = {};  // [head_dim]
  GradTarget k_weight_grad = {};  // [head_dim]
  void* scratch = nullptr;        // qk_norm_backward_scratch_bytes(rows, head_dim), aligned for float
  int64_t rows = 0;
  int64_t row_stride = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  NormWeight weight_kind = NormWeight::kPlain;
  int num_threads = 1;
};
template <class T>
void qk_norm_backward(const QkNormBackward<T>&);

int64_t qk_norm_backward_scratch_bytes(int64_t rows, int64_t head_dim);

}  // namespace fivefold::kernels
