#include "kernels/optimizer.h"

#include <cmath>

#include "kernels/clones.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {
namespace {

// What does not depend on the element, computed in fp64 and rounded once.
struct AdamWFactors {
  float grad_scale;
  float decay;  // 1 - lr weight_decay
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;       // lr / (1 - beta1^step)
  float inv_sqrt_bias2;  // 1 / sqrt(1 - beta2^step)
  float eps;
};

template <class G, bool kWriteBf16>
FIVEFOLD_CLONES void adamw_range(const AdamW<G>& a, AdamWFactors f, int64_t begin, int64_t end) {
  float* param = a.param;
  float* m = a.m;
  float* v = a.v;
  const G* grad = a.grad;
  BFloat16* param_bf16 = a.param_bf16;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = to_float(grad[i]) * f.grad_scale;
    const float m_next = m[i] + f.one_minus_beta1 * (g - m[i]);
    const float v_next = f.beta2 * v[i] + f.one_minus_beta2 * g * g;
    const float denominator = std::sqrt(v_next) * f.inv_sqrt_bias2 + f.eps;
    const float next = param[i] * f.decay - f.step_size * (m_next / denominator);
    m[i] = m_next;
    v[i] = v_next;
    param[i] = next;
    if constexpr (kWriteBf16) param_bf16[i] = from_float<BFloat16>(next);
  }
}

template <class G, bool kMomentum, bool kWriteBf16>
FIVEFOLD_CLONES void sgd_range(const Sgd<G>& a, int64_t begin, int64_t end) {
  float* param = a.param;
  float* buffer = a.momentum_buffer;
  const G* grad = a.grad;
  BFloat16* param_bf16 = a.param_bf16;
  const float grad_scale = a.grad_scale;
  const float lr = static_cast<float>(a.lr);
  const float momentum = static_cast<float>(a.momentum);
  const float weight_decay = static_cast<float>(a.weight_decay);
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    float update = to_float(grad[i]) * grad_scale + weight_decay * param[i];
    if constexpr (kMomentum) {
      update = momentum * buffer[i] + update;
      buffer[i] = update;
    }
    const float next = param[i] - lr * update;
    param[i] = next;
    if constexpr (kWriteBf16) param_bf16[i] = from_float<BFloat16>(next);
  }
}

constexpr int64_t kSquaresBlock = 4096;

template <class T>
FIVEFOLD_CLONES double squares_range(const T* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(to_float(x[i]));
    sum += value * value;
  }
  return sum;
}

}  // namespace

template <class G>
void adamw_step(const AdamW<G>& a) {
  FIVEFOLD_CHECK(a.step >= 1);
  const double step = static_cast<double>(a.step);
  const AdamWFactors factors{
      .grad_scale = a.grad_scale,
      .decay = static_cast<float>(1 - a.lr * a.weight_decay),
      .one_minus_beta1 = static_cast<float>(1 - a.beta1),
      .beta2 = static_cast<float>(a.beta2),
      .one_minus_beta2 = static_cast<float>(1 - a.beta2),
      .step_size = static_cast<float>(a.lr / (1 - std::pow(a.beta1, step))),
      .inv_sqrt_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(a.beta2, step))),
      .eps = static_cast<float>(a.eps),
  };
  for_each_block(a.n, kBlockElements, a.num_threads, [&](int64_t, int64_t begin, int64_t end) {
    a.param_bf16 != nullptr ? adamw_range<G, true>(a, factors, begin, end)
                            : adamw_range<G, false>(a, factors, begin, end);
  });
}

template <class G>
void sgd_step(const Sgd<G>& a) {
  FIVEFOLD_CHECK(a.momentum_buffer != nullptr || a.momentum == 0);
  for_each_block(a.n, kBlockElements, a.num_threads, [&](int64_t, int64_t begin, int64_t end) {
    if (a.momentum_buffer != nullptr) {
      a.param_bf16 != nullptr ? sgd_range<G, true, true>(a, begin, end) : sgd_range<G, true, false>(a, begin, end);
    } else {
      a.param_bf16 != nullptr ? sgd_range<G, false, true>(a, begin, end) : sgd_range<G, false, false>(a, begin, end);
    }
  });
}

template <class T>
double sum_of_squares(const T* x, int64_t n, void* scratch, int num_threads) {
  double* partials = static_cast<double*>(scratch);
  for_each_block(n, kSquaresBlock, num_threads, [&](int64_t block, int64_t begin, int64_t end) {
    partials[block] = squares_range(x + begin, end - begin);
  });
  double sum = 0;
  for (int64_t block = 0; block < div_ceil(n, kSquaresBlock); ++block) sum += partials[block];
  return sum;
}

template void adamw_step(const AdamW<float>&);
template void adamw_step(const AdamW<BFloat16>&);
template void sgd_step(const Sgd<float>&);
template void sgd_step(const Sgd<BFloat16>&);
template double sum_of_squares(const float*, int64_t, void*, int);
template double sum_of_squares(const BFloat16*, int64_t, void*, int);

int64_t sum_of_squares_scratch_bytes(int64_t n) { return div_ceil(n, kSquaresBlock) * int64_t{sizeof(double)}; }

}  // namespace fivefold::kernels
