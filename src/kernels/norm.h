// RMSNorm and LayerNorm over the last dim of a contiguous [rows, cols] matrix (rows = tokens).
//
//   RMSNorm    y = x rstd w              rstd = 1 / sqrt(mean(x^2) + eps)
//   LayerNorm  y = (x - mean) rstd w + b rstd = 1 / sqrt(mean((x - mean)^2) + eps)
//   backward   g = dy w, xhat = (x - mean) rstd
//              dx = rstd (g - mean(g) - xhat mean(g xhat))   (RMSNorm: without the term mean(g))
//              dw = sum over rows of dy xhat,  db = sum over rows of dy
//
// Only the statistics are kept for the backward; the output is made again from x where it is needed (`reemit`, or `y`
// of the backward). T is float or BFloat16 (element.h). Thread-safe; results do not depend on num_threads (Note [Fixed
// blocks], parallel.h).
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

// kPlusOne: the stored weight is w - 1 (Gemma).
enum class NormWeight : uint8_t { kPlain, kPlusOne };

template <class T>
struct NormForward {
  const T* x = nullptr;       // [rows, cols]
  const T* weight = nullptr;  // [cols]
  const T* bias = nullptr;    // [cols]; LayerNorm only
  T* y = nullptr;             // [rows, cols]; may be x
  float* mean = nullptr;      // [rows]; LayerNorm only
  float* rstd = nullptr;      // [rows]
  int64_t rows = 0;
  int64_t cols = 0;
  float eps = 0;
  NormWeight weight_kind = NormWeight::kPlain;
  int num_threads = 1;
};
// Write y and the statistics.
template <class T>
void rms_norm_forward(const NormForward<T>&);
template <class T>
void layer_norm_forward(const NormForward<T>&);

// Write y, bit-identical to the forward's, from x and the statistics of an earlier forward (read, `eps` unused).
template <class T>
void rms_norm_reemit(const NormForward<T>&);
template <class T>
void layer_norm_reemit(const NormForward<T>&);

template <class T>
struct NormBackward {
  const T* x = nullptr;                   // [rows, cols]
  const T* weight = nullptr;              // [cols]
  const T* bias = nullptr;                // [cols]; LayerNorm only, and only where y is wanted
  const float* mean = nullptr;            // [rows]; LayerNorm only
  const float* rstd = nullptr;            // [rows]
  const T* dy = nullptr;                  // [rows, cols]
  T* dx = nullptr;                        // [rows, cols]; dy itself is allowed under kOverwrite
  Accumulate dx_mode = Accumulate::kAdd;  // kAdd: dx is the residual stream's gradient, and grows in place
  T* y = nullptr;               // [rows, cols] or null: the forward's output again, for the weight gradient after it;
                                // may be dy
  GradTarget weight_grad = {};  // [cols]
  GradTarget bias_grad = {};    // [cols]; LayerNorm only
  void* scratch = nullptr;      // *_norm_backward_scratch_bytes(rows, cols), aligned for float
  int64_t rows = 0;
  int64_t cols = 0;
  NormWeight weight_kind = NormWeight::kPlain;
  int num_threads = 1;
};
template <class T>
void rms_norm_backward(const NormBackward<T>&);
template <class T>
void layer_norm_backward(const NormBackward<T>&);

int64_t rms_norm_backward_scratch_bytes(int64_t rows, int64_t cols);
int64_t layer_norm_backward_scratch_bytes(int64_t rows, int64_t cols);

}  // namespace fivefold::kernels
