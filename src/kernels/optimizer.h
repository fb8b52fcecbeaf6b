// Optimizer steps over flat ranges. Every element depends on itself only, so a range may be cut anywhere.
//
// G is the gradient's element, float or BFloat16; state and master weights are fp32. The arithmetic is that of
// torch.optim.AdamW and torch.optim.SGD (decoupled decay first, bias corrections in fp64).
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

template <class G>
struct AdamW {
  float* param = nullptr;          // [n]: the fp32 (master) weights
  float* m = nullptr;              // [n], zero before step 1
  float* v = nullptr;              // [n], zero before step 1
  const G* grad = nullptr;         // [n]
  BFloat16* param_bf16 = nullptr;  // [n] or null: the working copy, written
  int64_t n = 0;
  float grad_scale = 1;  // times the gradient: clipping factor, loss scale
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  int64_t step = 0;  // 1 at the first step
  int num_threads = 1;
};
// param *= 1 - lr wd;  m += (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g^2;
// param -= lr / (1 - beta1^step) m / (sqrt(v / (1 - beta2^step)) + eps).
template <class G>
void adamw_step(const AdamW<G>&);

template <class G>
struct Sgd {
  float* param = nullptr;            // [n]
  float* momentum_buffer = nullptr;  // [n], zero before step 1; null without momentum
  const G* grad = nullptr;           // [n]
  BFloat16* param_bf16 = nullptr;    // [n] or null: the working copy, written
  int64_t n = 0;
  float grad_scale = 1;
  double lr = 0;
  double momentum = 0;
  double weight_decay = 0;  // added to the gradient
  int num_threads = 1;
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
