#include "kernels/dropout.h"

#include <cmath>

#include "kernels/clones.h"
#include "kernels/parallel.h"
#include "kernels/stochastic_rounding.h"

namespace fivefold::kernels {
namespace {

constexpr double kSteps = 65536;

uint32_t threshold_of(double probability) {
  return static_cast<uint32_t>(std::min(kSteps - 1, std::nearbyint(probability * kSteps)));
}

template <class T>
FIVEFOLD_CLONES void drop(const T* x, const uint16_t* halves, uint32_t threshold, float factor, int64_t n, T* y,
                          bool add) {
  if (add) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i)
      y[i] = from_float<T>(to_float(y[i]) + (halves[i] < threshold ? 0.0f : factor * to_float(x[i])));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = from_float<T>(halves[i] < threshold ? 0.0f : factor * to_float(x[i]));
  }
}

}  // namespace

double applied_dropout(double probability) { return threshold_of(probability) / kSteps; }

template <class T>
void dropout(const T* x, const DropoutMask& mask, int64_t rows, int64_t cols, T* y, Accumulate mode, int num_threads) {
  const uint32_t threshold = threshold_of(mask.probability);
  const auto factor = static_cast<float>(1 / (1 - threshold / kSteps));
  for_each_block(rows, independent_block_rows(cols), num_threads, [&](int64_t, int64_t begin, int64_t end) {
    uint16_t halves[kRandomHalves];
    for (int64_t row = begin; row < end; ++row) {
      const RoundingBits bits{.seed = mask.seed,
                              .stream = mask.stream,
                              .first = mask.tokens[row] * mask.width + mask.first_column,
                              .runs = {}};
      for (int64_t col = 0; col < cols; col += kRandomChunk) {
        const int64_t n = std::min(kRandomChunk, cols - col), at = row * cols + col;
        drop(x + at, draw_halves(bits, col, n, halves), threshold, factor, n, y + at, mode == Accumulate::kAdd);
      }
    }
  });
}

template void dropout(const float*, const DropoutMask&, int64_t, int64_t, float*, Accumulate, int);
template void dropout(const BFloat16*, const DropoutMask&, int64_t, int64_t, BFloat16*, Accumulate, int);
template void dropout(const Float16*, const DropoutMask&, int64_t, int64_t, Float16*, Accumulate, int);

}  // namespace fivefold::kernels
