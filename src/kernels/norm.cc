#include "kernels/norm.h"

#include <cmath>

#include "kernels/clones.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {
namespace {

enum class Kind { kRms, kLayer };

float weight_offset(NormWeight kind) { return kind == NormWeight::kPlusOne ? 1.0f : 0.0f; }

// A function of its own, called for each row by the forward, the re-emission and the backward alike: that makes the
// output the same bits in all three.
template <class T, Kind kKind>
FIVEFOLD_CLONES void emit_row(const T* x, const T* weight, const T* bias, T* y, float mean, float rstd, float offset,
                              int64_t cols) {
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) {
    const float w = to_float(weight[c]) + offset;
    if constexpr (kKind == Kind::kLayer) {
      y[c] = from_float<T>((to_float(x[c]) - mean) * rstd * w + to_float(bias[c]));
    } else {
      y[c] = from_float<T>(to_float(x[c]) * rstd * w);
    }
  }
}

template <class T, Kind kKind>
FIVEFOLD_CLONES void statistics_row(const T* x, int64_t cols, float eps, float* mean_out, float* rstd_out) {
  float mean = 0;
  if constexpr (kKind == Kind::kLayer) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < cols; ++c) sum += to_float(x[c]);
    mean = sum / static_cast<float>(cols);
    *mean_out = mean;
  }
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < cols; ++c) {
    const float centered = to_float(x[c]) - mean;
    squares += centered * centered;
  }
  *rstd_out = 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps);
}

template <class T, Kind kKind, Accumulate kMode>
FIVEFOLD_INLINE void backward_row(const T* x, const T* weight, const T* dy, T* dx, float mean, float rstd, float offset,
                                  int64_t cols, float* dw, float* db) {
  float sum_g = 0;
  float sum_g_xhat = 0;
#pragma omp simd reduction(+ : sum_g, sum_g_xhat)
  for (int64_t c = 0; c < cols; ++c) {
    const float g = to_float(dy[c]) * (to_float(weight[c]) + offset);
    sum_g += g;
    sum_g_xhat += g * ((to_float(x[c]) - mean) * rstd);
  }
  const float mean_g = kKind == Kind::kLayer ? sum_g / static_cast<float>(cols) : 0.0f;
  const float mean_g_xhat = sum_g_xhat / static_cast<float>(cols);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) {
    const float dy_c = to_float(dy[c]);
    const float xhat = (to_float(x[c]) - mean) * rstd;
    const float g = dy_c * (to_float(weight[c]) + offset);
    const float d = rstd * (g - mean_g - xhat * mean_g_xhat);
    dx[c] = from_float<T>(kMode == Accumulate::kAdd ? to_float(dx[c]) + d : d);
    dw[c] += dy_c * xhat;
    if constexpr (kKind == Kind::kLayer) db[c] += dy_c;
  }
}

// One block of rows; `partial` holds its dw [cols] and, for LayerNorm, its db [cols].
template <class T, Kind kKind, Accumulate kMode>
FIVEFOLD_CLONES void backward_rows(const NormBackward<T>& a, int64_t begin, int64_t end, float* partial) {
  const float offset = weight_offset(a.weight_kind);
  std::fill_n(partial, (kKind == Kind::kLayer ? 2 : 1) * a.cols, 0.0f);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = a.x + r * a.cols;
    const float mean = kKind == Kind::kLayer ? a.mean[r] : 0.0f;
    backward_row<T, kKind, kMode>(x, a.weight, a.dy + r * a.cols, a.dx + r * a.cols, mean, a.rstd[r], offset, a.cols,
                                  partial, partial + a.cols);
    if (a.y != nullptr) {
      emit_row<T, kKind>(x, a.weight, a.bias, a.y + r * a.cols, mean, a.rstd[r], offset, a.cols);
    }
  }
}

template <class T, Kind kKind>
void emit(const NormForward<T>& a, int64_t r) {
  emit_row<T, kKind>(a.x + r * a.cols, a.weight, a.bias, a.y + r * a.cols, kKind == Kind::kLayer ? a.mean[r] : 0.0f,
                     a.rstd[r], weight_offset(a.weight_kind), a.cols);
}

template <class T, Kind kKind>
void forward(const NormForward<T>& a) {
  for_each_block(a.rows, independent_block_rows(a.cols), a.num_threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      statistics_row<T, kKind>(a.x + r * a.cols, a.cols, a.eps, kKind == Kind::kLayer ? a.mean + r : nullptr,
                               a.rstd + r);
      emit<T, kKind>(a, r);
    }
  });
}

template <class T, Kind kKind>
void reemit(const NormForward<T>& a) {
  for_each_block(a.rows, independent_block_rows(a.cols), a.num_threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) emit<T, kKind>(a, r);
  });
}

template <class T, Kind kKind>
void backward(const NormBackward<T>& a) {
  const int64_t stride = (kKind == Kind::kLayer ? 2 : 1) * a.cols;
  float* partials = static_cast<float*>(a.scratch);
  for_each_block(a.rows, kBlockRows, a.num_threads, [&](int64_t block, int64_t begin, int64_t end) {
    if (a.dx_mode == Accumulate::kAdd) {
      backward_rows<T, kKind, Accumulate::kAdd>(a, begin, end, partials + block * stride);
    } else {
      backward_rows<T, kKind, Accumulate::kOverwrite>(a, begin, end, partials + block * stride);
    }
  });
  const int64_t num_blocks = div_ceil(a.rows, kBlockRows);
  reduce_partials(partials, num_blocks, stride, a.cols, a.weight_grad, a.num_threads);
  if constexpr (kKind == Kind::kLayer) {
    reduce_partials(partials + a.cols, num_blocks, stride, a.cols, a.bias_grad, a.num_threads);
  }
}

}  // namespace

template <class T>
void rms_norm_forward(const NormForward<T>& a) {
  forward<T, Kind::kRms>(a);
}
template <class T>
void layer_norm_forward(const NormForward<T>& a) {
  forward<T, Kind::kLayer>(a);
}
template <class T>
void rms_norm_reemit(const NormForward<T>& a) {
  reemit<T, Kind::kRms>(a);
}
template <class T>
void layer_norm_reemit(const NormForward<T>& a) {
  reemit<T, Kind::kLayer>(a);
}
template <class T>
void rms_norm_backward(const NormBackward<T>& a) {
  backward<T, Kind::kRms>(a);
}
template <class T>
void layer_norm_backward(const NormBackward<T>& a) {
  backward<T, Kind::kLayer>(a);
}

template void rms_norm_forward(const NormForward<float>&);
template void rms_norm_forward(const NormForward<BFloat16>&);
template void rms_norm_forward(const NormForward<Float16>&);
template void layer_norm_forward(const NormForward<float>&);
template void layer_norm_forward(const NormForward<BFloat16>&);
template void layer_norm_forward(const NormForward<Float16>&);
template void rms_norm_reemit(const NormForward<float>&);
template void rms_norm_reemit(const NormForward<BFloat16>&);
template void rms_norm_reemit(const NormForward<Float16>&);
template void layer_norm_reemit(const NormForward<float>&);
template void layer_norm_reemit(const NormForward<BFloat16>&);
template void layer_norm_reemit(const NormForward<Float16>&);
template void rms_norm_backward(const NormBackward<float>&);
template void rms_norm_backward(const NormBackward<BFloat16>&);
template void rms_norm_backward(const NormBackward<Float16>&);
template void layer_norm_backward(const NormBackward<float>&);
template void layer_norm_backward(const NormBackward<BFloat16>&);
template void layer_norm_backward(const NormBackward<Float16>&);

int64_t rms_norm_backward_scratch_bytes(int64_t rows, int64_t cols) {
  return div_ceil(rows, kBlockRows) * cols * int64_t{sizeof(float)};
}
int64_t layer_norm_backward_scratch_bytes(int64_t rows, int64_t cols) {
  return 2 * rms_norm_backward_scratch_bytes(rows, cols);
}

}  // namespace fivefold::kernels
