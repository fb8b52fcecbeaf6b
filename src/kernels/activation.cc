#include "kernels/activation.h"

#include "kernels/clones.h"
#include "kernels/parallel.h"
#include "kernels/vector_math.h"

namespace fivefold::kernels {
namespace {

template <class T>
FIVEFOLD_CLONES void swiglu_forward_row(const T* gate, const T* up, T* act, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const float g = to_float(gate[i]);
    act[i] = from_float<T>(g * sigmoid_f32(g) * to_float(up[i]));
  }
}

// d silu(g) / dg = s + g s (1 - s), s = sigmoid(g).
template <class T>
FIVEFOLD_CLONES void swiglu_backward_row(T* gate, T* up, T* dact, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const float g = to_float(gate[i]);
    const float u = to_float(up[i]);
    const float d = to_float(dact[i]);
    const float s = sigmoid_f32(g);
    const float silu = g * s;
    gate[i] = from_float<T>(d * u * (s + silu * (1.0f - s)));
    up[i] = from_float<T>(d * silu);
    dact[i] = from_float<T>(silu * u);
  }
}

// The tanh form is x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3), since (1 + tanh(u)) / 2 = sigmoid(2 u).
constexpr float kTwiceSqrt2OverPi = 1.5957691216f;
constexpr float kCubic = 0.044715f;

struct Slope {
  float value, derivative;
};

template <Activation kKind>
FIVEFOLD_INLINE Slope slope(float x) {
  if constexpr (kKind == Activation::kGeluTanh) {
    const float s = sigmoid_f32(kTwiceSqrt2OverPi * (x + kCubic * x * x * x));
    return {x * s, s + x * s * (1.0f - s) * kTwiceSqrt2OverPi * (1.0f + 3.0f * kCubic * x * x)};
  } else if constexpr (kKind == Activation::kGeluErf) {
    const NormalCdf normal = normal_cdf_f32(x);
    return {x * normal.cdf, normal.cdf + x * normal.density};
  } else if constexpr (kKind == Activation::kSilu) {
    const float s = sigmoid_f32(x);
    return {x * s, s + x * s * (1.0f - s)};
  } else {
    const float positive = x > 0 ? x : 0.0f;
    return {positive * positive, 2.0f * positive};
  }
}

template <class T, Activation kKind>
FIVEFOLD_CLONES void forward_range(const T* x, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = from_float<T>(slope<kKind>(to_float(x[i])).value);
}

template <class T, Activation kKind>
FIVEFOLD_CLONES void backward_range(T* x, T* dy, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Slope at = slope<kKind>(to_float(x[i]));
    x[i] = from_float<T>(to_float(dy[i]) * at.derivative);
    dy[i] = from_float<T>(at.value);
  }
}

// f.template operator()<kKind>() for the kind that is known at run time.
template <class F>
void visit_activation(Activation kind, const F& f) {
  switch (kind) {
    case Activation::kGeluTanh:
      return f.template operator()<Activation::kGeluTanh>();
    case Activation::kGeluErf:
      return f.template operator()<Activation::kGeluErf>();
    case Activation::kSilu:
      return f.template operator()<Activation::kSilu>();
    case Activation::kSquaredRelu:
      return f.template operator()<Activation::kSquaredRelu>();
  }
}

}  // namespace

template <class T>
void swiglu_forward(const T* gate_up, T* act, int64_t rows, int64_t width, int num_threads) {
  for_each_block(rows, independent_block_rows(width), num_threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* gate = gate_up + r * 2 * width;
      swiglu_forward_row(gate, gate + width, act + r * width, width);
    }
  });
}

template <class T>
void swiglu_backward(T* gate_up, T* dact, int64_t rows, int64_t width, int num_threads) {
  for_each_block(rows, independent_block_rows(width), num_threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* gate = gate_up + r * 2 * width;
      swiglu_backward_row(gate, gate + width, dact + r * width, width);
    }
  });
}

template <class T>
void activation_forward(Activation kind, const T* x, T* y, int64_t n, int num_threads) {
  visit_activation(kind, [&]<Activation kKind>() {
    for_each_block(n, kBlockElements, num_threads, [&](int64_t, int64_t begin, int64_t end) {
      forward_range<T, kKind>(x + begin, y + begin, end - begin);
    });
  });
}

template <class T>
void activation_backward(Activation kind, T* x, T* dy, int64_t n, int num_threads) {
  visit_activation(kind, [&]<Activation kKind>() {
    for_each_block(n, kBlockElements, num_threads, [&](int64_t, int64_t begin, int64_t end) {
      backward_range<T, kKind>(x + begin, dy + begin, end - begin);
    });
  });
}

template void swiglu_forward(const float*, float*, int64_t, int64_t, int);
template void swiglu_forward(const BFloat16*, BFloat16*, int64_t, int64_t, int);
template void swiglu_forward(const Float16*, Float16*, int64_t, int64_t, int);
template void swiglu_backward(float*, float*, int64_t, int64_t, int);
template void swiglu_backward(BFloat16*, BFloat16*, int64_t, int64_t, int);
template void swiglu_backward(Float16*, Float16*, int64_t, int64_t, int);
template void activation_forward(Activation, const float*, float*, int64_t, int);
template void activation_forward(Activation, const BFloat16*, BFloat16*, int64_t, int);
template void activation_forward(Activation, const Float16*, Float16*, int64_t, int);
template void activation_backward(Activation, float*, float*, int64_t, int);
template void activation_backward(Activation, BFloat16*, BFloat16*, int64_t, int);
template void activation_backward(Activation, Float16*, Float16*, int64_t, int);

}  // namespace fivefold::kernels
