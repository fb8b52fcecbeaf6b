// Dropout whose mask is a pure function of (seed, stream, token, column): whoever computes an element again, on
// whatever rank and with whatever part of the matrix, draws the same. An element is dropped with a probability that is
// a multiple of 2^-16, and what is left is divided by the probability that it stays.
//
// The 16 bits of token k's column c are those of element k x width + c of stochastic_rounding.h's stream; the element
// is dropped if they are below probability x 2^16.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

struct DropoutMask {
  uint64_t seed = 0, stream = 0;
  const int64_t* tokens = nullptr;  // of each row its token's number, not negative
  int64_t width = 0;                // columns of the whole matrix
  int64_t first_column = 0;         // of these, where column 0 of the rows lies
  double probability = 0;           // from 0 up to, and without, 1
};

// The probability that is applied: rounded to 2^-16, and below 1.
double applied_dropout(double probability);

// y = x with elements dropped; for kAdd added to y. Contiguous [rows, cols]; y may be x.
template <class T>
void dropout(const T* x, const DropoutMask& mask, int64_t rows, int64_t cols, T* y, Accumulate mode, int num_threads);

}  // namespace fivefold::kernels
