#include "kernels/column_sum.h"

#include "kernels/clones.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {
namespace {

// Columns whose partial sums stay in the first-level cache while a block's rows pass.
constexpr int64_t kTileCols = 1024;

template <class T>
FIVEFOLD_CLONES void sum_rows(const T* x, int64_t rows, int64_t cols, float* partial) {
  std::fill_n(partial, cols, 0.0f);
  for (int64_t tile = 0; tile < cols; tile += kTileCols) {
    const int64_t tile_end = std::min(cols, tile + kTileCols);
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = x + r * cols;
#pragma omp simd
      for (int64_t c = tile; c < tile_end; ++c) partial[c] += to_float(row[c]);
    }
  }
}

}  // namespace

template <class T>
void column_sum(const T* x, int64_t rows, int64_t cols, GradTarget target, void* scratch, int num_threads) {
  float* partials = static_cast<float*>(scratch);
  for_each_block(rows, kBlockRows, num_threads, [&](int64_t block, int64_t begin, int64_t end) {
    sum_rows(x + begin * cols, end - begin, cols, partials + block * cols);
  });
  reduce_partials(partials, div_ceil(rows, kBlockRows), cols, cols, target, num_threads);
}

template void column_sum(const float*, int64_t, int64_t, GradTarget, void*, int);
template void column_sum(const BFloat16*, int64_t, int64_t, GradTarget, void*, int);
template void column_sum(const Float16*, int64_t, int64_t, GradTarget, void*, int);

int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols) {
  return div_ceil(rows, kBlockRows) * cols * int64_t{sizeof(float)};
}

}  // namespace fivefold::kernels
