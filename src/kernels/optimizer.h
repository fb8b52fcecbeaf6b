// Optimizer steps over flat ranges. Every element depends on itself only, so a range may be cut anywhere.
//
// G is the gradient's element, of any type. S is that of AdamW's states: float, BFloat16 or uint8_t. The
// arithmetic is in fp32 and that of torch.optim.AdamW and torch.optim.SGD (decoupled decay first, bias corrections in
// fp64).
//
// Note [Weights of an optimizer step]
// `param` holds the fp32 (master) weights; `param_bf16`, where given, is a working copy that is written. Without
// `param` the bf16 weights are all there is: they are read, and the result is rounded stochastically with the bits of
// `rounding` (stochastic_rounding.h). A working copy in fp16 is the caller's to convert.
//
// Note [States in 16 bits]
// New moments are computed in fp32, used so, and stored rounded to nearest. A state in bf16 has 8 bits of significand:
// each stored value is off by up to 2^-9 of itself, and a change smaller than that is lost. Adam's second moment moves
// towards g^2 by the part 1 - beta2 a step: with beta2 = 0.999 a v that is within a factor of 3 of g^2 no longer moves
// (0.001 x 2 < 2^-9), with beta2 = 0.95 one within 4 %. The first moment (0.1 a step) is within 2 % of what fp32 holds.
//
// Note [States in 8 bits]
// S = uint8_t: m as codes of the signed dynamic map, v of the unsigned, in blocks of 256 elements with an absmax each
// (dynamic_map.h). The update uses the full-precision new moments; only what is stored is rounded, so the first step
// equals that in fp32. 2 + 8 / 256 bytes an element. A second moment below 1.6e-7 of its block's largest is stored as
// code 0; should the next gradient of that element be exactly zero, the denominator is eps alone and the weight jumps
// by up to lr m / eps. Gradients with zeros of that kind are those of embedding rows whose token did not occur.
#pragma once

#include <cstdint>

#include "kernels/element.h"
#include "kernels/stochastic_rounding.h"

namespace fivefold::kernels {

// Elements that share an absmax.
inline constexpr int64_t kOptimizerStateBlock = 256;

template <class G, class S = float>
struct AdamW {
  float* param = nullptr;          // [n] or null; Note [Weights of an optimizer step]
  S* m = nullptr;                  // [n], zero before step 1; codes then do not matter
  S* v = nullptr;                  // [n], zero before step 1
  const G* grad = nullptr;         // [n]
  BFloat16* param_bf16 = nullptr;  // [n] or null
  int64_t n = 0;
  float grad_scale = 1;  // times the gradient: clipping factor, loss scale
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  int64_t step = 0;  // 1 at the first step
  int num_threads = 1;
  float* m_absmax = nullptr;  // [div_ceil(n, 256)], for states in 8 bits; zero before step 1
  float* v_absmax = nullptr;
  RoundingBits rounding;
};
// param *= 1 - lr wd;  m += (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g^2;
// param -= lr / (1 - beta1^step) m / (sqrt(v / (1 - beta2^step)) + eps).
template <class G, class S = float>
void adamw_step(const AdamW<G, S>&);
template <>
void adamw_step(const AdamW<float, uint8_t>&);  // adam8bit.cc
template <>
void adamw_step(const AdamW<BFloat16, uint8_t>&);
template <>
void adamw_step(const AdamW<Float16, uint8_t>&);

template <class G>
struct Sgd {
  float* param = nullptr;            // [n] or null; Note [Weights of an optimizer step]
  float* momentum_buffer = nullptr;  // [n], zero before step 1; null without momentum
  const G* grad = nullptr;           // [n]
  BFloat16* param_bf16 = nullptr;    // [n] or null
  int64_t n = 0;
  float grad_scale = 1;
  double lr = 0;
  double momentum = 0;
  double weight_decay = 0;  // added to the gradient
  int num_threads = 1;
  RoundingBits rounding;
};
// g += wd param;  buffer = momentum buffer + g;  param -= lr buffer (lr g without momentum).
template <class G>
void sgd_step(const Sgd<G>&);

// Sum of x_i^2 in fp64, over fixed blocks of 4096 elements added in order. `scratch`: sum_of_squares_scratch_bytes(n),
// aligned for double.
template <class T>
double sum_of_squares(const T* x, int64_t n, void* scratch, int num_threads);

int64_t sum_of_squares_scratch_bytes(int64_t n);

}  // namespace fivefold::kernels
