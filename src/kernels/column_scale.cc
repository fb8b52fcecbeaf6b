#include "kernels/column_scale.h"

#include "kernels/clones.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {
namespace {

// Columns whose partial sums stay in the first-level cache while a block's rows pass.
constexpr int64_t kTileCols = 1024;

template <class T>
FIVEFOLD_CLONES void scale_rows(const ColumnScale<T>& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = args.x + r * args.cols;
    T* y = args.y + r * args.cols;
    const T* residual = args.residual == nullptr ? nullptr : args.residual + r * args.cols;
    for (int64_t tile = 0; tile < args.cols; tile += kTileCols) {
      const int64_t tile_end = std::min(args.cols, tile + kTileCols);
      float values[kTileCols];
#pragma omp simd
      for (int64_t c = tile; c < tile_end; ++c) values[c - tile] = args.factors[c] * to_float(x[c]);
      if (args.bias != nullptr) {
#pragma omp simd
        for (int64_t c = tile; c < tile_end; ++c) values[c - tile] += to_float(args.bias[c]);
      }
      if (residual != nullptr) {
#pragma omp simd
        for (int64_t c = tile; c < tile_end; ++c) values[c - tile] += to_float(residual[c]);
      }
#pragma omp simd
      for (int64_t c = tile; c < tile_end; ++c) y[c] = from_float<T>(values[c - tile]);
    }
  }
}

template <class T>
FIVEFOLD_CLONES void dot_rows(const ColumnDot<T>& args, int64_t begin, int64_t end, float* partial) {
  std::fill_n(partial, args.cols, 0.0f);
  for (int64_t tile = 0; tile < args.cols; tile += kTileCols) {
    const int64_t tile_end = std::min(args.cols, tile + kTileCols);
    for (int64_t r = begin; r < end; ++r) {
      const T* a = args.a + r * args.stride;
      const T* b = args.b + r * args.stride;
#pragma omp simd
      for (int64_t c = tile; c < tile_end; ++c) partial[c] += to_float(a[c]) * to_float(b[c]);
    }
#pragma omp simd
    for (int64_t c = tile; c < tile_end; ++c) partial[c] *= args.factors[c];
  }
}

}  // namespace

template <class T>
void scale_columns(const ColumnScale<T>& args) {
  for_each_block(args.rows, independent_block_rows(args.cols), args.num_threads,
                 [&](int64_t, int64_t begin, int64_t end) { scale_rows(args, begin, end); });
}

template void scale_columns(const ColumnScale<float>&);
template void scale_columns(const ColumnScale<BFloat16>&);
template void scale_columns(const ColumnScale<Float16>&);

template <class T>
void column_dot(const ColumnDot<T>& args) {
  float* partials = static_cast<float*>(args.scratch);
  for_each_block(args.rows, kBlockRows, args.num_threads, [&](int64_t block, int64_t begin, int64_t end) {
    dot_rows(args, begin, end, partials + block * args.cols);
  });
  reduce_partials(partials, div_ceil(args.rows, kBlockRows), args.cols, args.cols, args.target, args.num_threads);
}

template void column_dot(const ColumnDot<float>&);
template void column_dot(const ColumnDot<BFloat16>&);
template void column_dot(const ColumnDot<Float16>&);

int64_t column_dot_scratch_bytes(int64_t rows, int64_t cols) {
  return div_ceil(rows, kBlockRows) * cols * int64_t{sizeof(float)};
}

}  // namespace fivefold::kernels
