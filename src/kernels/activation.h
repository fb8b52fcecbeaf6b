// Activations of the MLP: SwiGLU on packed [gate, up] rows, and the plain ones over flat ranges.
//
// Backward functions take what the forward read (not what it wrote) and recompute the rest.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

// act = silu(gate) up, with gate_up [rows, 2 width] (gate first) and act [rows, width].
template <class T>
void swiglu_forward(const T* gate_up, T* act, int64_t rows, int64_t width, int num_threads);

// Replaces gate_up by its gradient, given dact [rows, width]. With `act` not null the product of the forward is written
// there on the way, for the weight gradient of the down projection; act may be dact itself.
template <class T>
void swiglu_backward(T* gate_up, const T* dact, T* act, int64_t rows, int64_t width, int num_threads);

enum class Activation : uint8_t {
  kGeluTanh,     // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kGeluErf,      // x/2 (1 + erf(x / sqrt 2))
  kSilu,         // x / (1 + exp(-x))
  kSquaredRelu,  // max(x, 0)^2
};

// y = f(x) over n elements; y may be x.
template <class T>
void activation_forward(Activation, const T* x, T* y, int64_t n, int num_threads);

// grad *= f'(x) over n elements, x being the forward's input.
template <class T>
void activation_backward(Activation, const T* x, T* grad, int64_t n, int num_threads);

}  // namespace fivefold::kernels
