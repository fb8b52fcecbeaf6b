// Soft cap: y = cap tanh(x / cap), the identity for small x and never beyond +-cap. Gemma 2 caps its logits and its
// attention scores so. A kernel in the style of src/kernels: templates over the element in memory (float, BFloat16),
// fp32 in registers, and a backward that takes what the forward read.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace softcap {

// y = cap tanh(x / cap) over n elements; y may be x.
template <class T>
void forward(const T* x, T* y, int64_t n, float cap, int num_threads);

// grad *= 1 - tanh(x / cap)^2 over n elements, x being the forward's input.
template <class T>
void backward(const T* x, T* grad, int64_t n, float cap, int num_threads);

}  // namespace softcap
