#include "kernels/parallel.h"

#include "kernels/clones.h"

#ifndef _OPENMP
#error "src/kernels must be compiled with -fopenmp: without it every kernel runs on one thread"
#endif

namespace fivefold::kernels {
namespace {

constexpr int64_t kTileCols = 256;

template <class T>
FIVEFOLD_CLONES void reduce_tile(const float* partials, int64_t num_blocks, int64_t stride, int64_t cols,
                                 Accumulate mode, T* target) {
  double sums[kTileCols] = {};
  for (int64_t block = 0; block < num_blocks; ++block) {
    const float* partial = partials + block * stride;
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) sums[c] += static_cast<double>(partial[c]);
  }
  for (int64_t c = 0; c < cols; ++c) {
    const float sum = static_cast<float>(sums[c]);
    target[c] = from_float<T>(mode == Accumulate::kAdd ? to_float(target[c]) + sum : sum);
  }
}

}  // namespace

void reduce_partials(const float* partials, int64_t num_blocks, int64_t stride, int64_t cols, GradTarget target,
                     int num_threads) {
  if (target.data == nullptr) return;  // nobody wants this gradient
  visit_element(target.type, [&]<class T>(std::type_identity<T>) {
    T* data = static_cast<T*>(target.data);
    for_each_block(cols, kTileCols, num_threads, [&](int64_t, int64_t begin, int64_t end) {
      reduce_tile(partials + begin, num_blocks, stride, end - begin, target.mode, data + begin);
    });
  });
}

}  // namespace fivefold::kernels
