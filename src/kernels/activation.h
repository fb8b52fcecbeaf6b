// Activations of the MLP: SwiGLU on packed [gate, up] rows, and the plain ones over flat ranges.
//
// Backward functions take what the forward read and exchange: the forward's input becomes its gradient, the gradient of
// the output becomes the output, which the weight gradient of the next matrix needs and nobody kept.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

// act = silu(gate) up, with gate_up [rows, 2 width] (gate first) and act [rows, width].
template <class T>
void swiglu_forward(const T* gate_up, T* act, int64_t rows, int64_t width, int num_threads);

// gate_up becomes its gradient; dact [rows, width], the gradient of act, becomes act as the forward wrote it.
template <class T>
void swiglu_backward(T* gate_up, T* dact, int64_t rows, int64_t width, int num_threads);

enum class Activation : uint8_t {
  kGeluTanh,     // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kGeluErf,      // x/2 (1 + erf(x / sqrt 2))
  kSilu,         // x / (1 + exp(-x))
  kSquaredRelu,  // max(x, 0)^2
};

// y = f(x) over n elements; y may be x.
template <class T>
void activation_forward(Activation, const T* x, T* y, int64_t n, int num_threads);

// x becomes its gradient f'(x) dy, and dy becomes f(x), over n elements.
template <class T>
void activation_backward(Activation, T* x, T* dy, int64_t n, int num_threads);

}  // namespace fivefold::kernels
