#include "kernels/optimizer.h"

#include <cmath>

#include "kernels/optimizer_elements.h"

namespace fivefold::kernels {
namespace {

template <class G, class S, Weights kWeights>
FIVEFOLD_CLONES void adamw_range(const AdamW<G, S>& a, AdamWFactors f, int64_t begin, int64_t end,
                                 const uint16_t* random) {
  float* param = a.param;
  S* m = a.m;
  S* v = a.v;
  const G* grad = a.grad;
  BFloat16* param_bf16 = a.param_bf16;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = to_float(grad[i]) * f.grad_scale;
    const float m_next = next_m(f, to_float(m[i]), g);
    const float v_next = next_v(f, to_float(v[i]), g);
    const float next = next_weight(f, read_weight<kWeights>(param, param_bf16, i), m_next, v_next);
    m[i] = from_float<S>(m_next);
    v[i] = from_float<S>(v_next);
    write_weight<kWeights>(param, param_bf16, i, next, random, begin);
  }
}

// Constants of a step, rounded once.
struct SgdFactors {
  float grad_scale, lr, momentum, weight_decay;
};

template <class G, bool kMomentum, Weights kWeights>
FIVEFOLD_CLONES void sgd_range(const Sgd<G>& a, SgdFactors f, int64_t begin, int64_t end, const uint16_t* random) {
  float* param = a.param;
  float* buffer = a.momentum_buffer;
  const G* grad = a.grad;
  BFloat16* param_bf16 = a.param_bf16;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float weight = read_weight<kWeights>(param, param_bf16, i);
    float update = to_float(grad[i]) * f.grad_scale + f.weight_decay * weight;
    if constexpr (kMomentum) {
      update = f.momentum * buffer[i] + update;
      buffer[i] = update;
    }
    write_weight<kWeights>(param, param_bf16, i, weight - f.lr * update, random, begin);
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

template <class G, class S>
void adamw_step(const AdamW<G, S>& a) {
  const AdamWFactors factors = adamw_factors(a);
  for_each_weight_range(a, kBlockElements, [&]<Weights kWeights>(int64_t begin, int64_t end, const uint16_t* random) {
    adamw_range<G, S, kWeights>(a, factors, begin, end, random);
  });
}

template <class G>
void sgd_step(const Sgd<G>& a) {
  FIVEFOLD_CHECK(a.momentum_buffer != nullptr || a.momentum == 0);
  const SgdFactors factors{a.grad_scale, static_cast<float>(a.lr), static_cast<float>(a.momentum),
                           static_cast<float>(a.weight_decay)};
  for_each_weight_range(a, kBlockElements, [&]<Weights kWeights>(int64_t begin, int64_t end, const uint16_t* random) {
    a.momentum_buffer != nullptr ? sgd_range<G, true, kWeights>(a, factors, begin, end, random)
                                 : sgd_range<G, false, kWeights>(a, factors, begin, end, random);
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

template void adamw_step(const AdamW<float, float>&);
template void adamw_step(const AdamW<float, BFloat16>&);
template void adamw_step(const AdamW<BFloat16, float>&);
template void adamw_step(const AdamW<Float16, float>&);
template void adamw_step(const AdamW<BFloat16, BFloat16>&);
template void adamw_step(const AdamW<Float16, BFloat16>&);
template void sgd_step(const Sgd<float>&);
template void sgd_step(const Sgd<BFloat16>&);
template void sgd_step(const Sgd<Float16>&);
template double sum_of_squares(const float*, int64_t, void*, int);
template double sum_of_squares(const BFloat16*, int64_t, void*, int);
template double sum_of_squares(const Float16*, int64_t, void*, int);

int64_t sum_of_squares_scratch_bytes(int64_t n) { return div_ceil(n, kSquaresBlock) * int64_t{sizeof(double)}; }

}  // namespace fivefold::kernels
