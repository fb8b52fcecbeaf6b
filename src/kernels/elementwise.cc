#include "kernels/elementwise.h"

#include <atomic>
#include <cstring>

#include "kernels/clones.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {
namespace {

template <class From, class To>
FIVEFOLD_CLONES void convert_range(const From* from, To* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = from_float<To>(to_float(from[i]));
}

template <class T>
FIVEFOLD_CLONES void add_range(const T* x, float* sum, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] += to_float(x[i]);
}

template <class T>
FIVEFOLD_CLONES void scale_range(T* x, int64_t n, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = from_float<T>(to_float(x[i]) * factor);
}

// All bits of the exponent set: infinity or NaN.
template <class T>
FIVEFOLD_CLONES int32_t non_finite_range(const T* x, int64_t n) {
  constexpr uint32_t kExponent = 0x7f800000u;
  int32_t count = 0;
#pragma omp simd reduction(+ : count)
  for (int64_t i = 0; i < n; ++i) {
    count += (std::bit_cast<uint32_t>(to_float(x[i])) & kExponent) == kExponent ? 1 : 0;
  }
  return count;
}

template <class From, class To>
void convert_all(const From* from, To* to, int64_t n, int num_threads) {
  for_each_block(n, kBlockElements, num_threads,
                 [&](int64_t, int64_t begin, int64_t end) { convert_range(from + begin, to + begin, end - begin); });
}

template <class From, class To>
void convert_all_rows(const From* from, int64_t from_stride, To* to, int64_t to_stride, int64_t rows, int64_t cols,
                      int num_threads) {
  for_each_block(rows, independent_block_rows(cols), num_threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) convert_range(from + r * from_stride, to + r * to_stride, cols);
  });
}

template <class T>
void add_all(const T* x, float* sum, int64_t n, int num_threads) {
  for_each_block(n, kBlockElements, num_threads,
                 [&](int64_t, int64_t begin, int64_t end) { add_range(x + begin, sum + begin, end - begin); });
}

template <class T>
void scale_all(T* x, int64_t n, float factor, int num_threads) {
  for_each_block(n, kBlockElements, num_threads,
                 [&](int64_t, int64_t begin, int64_t end) { scale_range(x + begin, end - begin, factor); });
}

template <class T>
int64_t count_all(const T* x, int64_t n, int num_threads) {
  std::atomic<int64_t> count{0};
  for_each_block(n, kBlockElements, num_threads, [&](int64_t, int64_t begin, int64_t end) {
    count.fetch_add(non_finite_range(x + begin, end - begin), std::memory_order_relaxed);
  });
  return count.load();
}

}  // namespace

void convert(const float* from, BFloat16* to, int64_t n, int num_threads) { convert_all(from, to, n, num_threads); }
void convert(const float* from, Float16* to, int64_t n, int num_threads) { convert_all(from, to, n, num_threads); }
void convert(const BFloat16* from, float* to, int64_t n, int num_threads) { convert_all(from, to, n, num_threads); }
void convert(const Float16* from, float* to, int64_t n, int num_threads) { convert_all(from, to, n, num_threads); }

void convert_rows(const Float16* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows, int64_t cols,
                  int num_threads) {
  convert_all_rows(from, from_stride, to, to_stride, rows, cols, num_threads);
}
void convert_rows(const float* from, int64_t from_stride, Float16* to, int64_t to_stride, int64_t rows, int64_t cols,
                  int num_threads) {
  convert_all_rows(from, from_stride, to, to_stride, rows, cols, num_threads);
}

void add_into(const BFloat16* x, float* sum, int64_t n, int num_threads) { add_all(x, sum, n, num_threads); }
void add_into(const Float16* x, float* sum, int64_t n, int num_threads) { add_all(x, sum, n, num_threads); }
void add_into(const float* x, float* sum, int64_t n, int num_threads) { add_all(x, sum, n, num_threads); }

void scale(float* x, int64_t n, float factor, int num_threads) { scale_all(x, n, factor, num_threads); }
void scale(BFloat16* x, int64_t n, float factor, int num_threads) { scale_all(x, n, factor, num_threads); }
void scale(Float16* x, int64_t n, float factor, int num_threads) { scale_all(x, n, factor, num_threads); }

void fill_zero(void* data, int64_t bytes, int num_threads) {
  for_each_block(bytes, 16 * kBlockElements, num_threads, [&](int64_t, int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(data) + begin, 0, static_cast<size_t>(end - begin));
  });
}

int64_t count_non_finite(const float* x, int64_t n, int num_threads) { return count_all(x, n, num_threads); }
int64_t count_non_finite(const BFloat16* x, int64_t n, int num_threads) { return count_all(x, n, num_threads); }
int64_t count_non_finite(const Float16* x, int64_t n, int num_threads) { return count_all(x, n, num_threads); }

}  // namespace fivefold::kernels
