// What the forward and the backward of CPU attention share: products of tiles, reading of key rows, cutting of scratch,
// and the loop that gives tasks to threads.
#pragma once

#include <ATen/native/CPUBlas.h>
#include <omp.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/integer.h"
#include "engine/ops/attention_tasks.h"
#include "engine/ops/attention_tiles.h"
#include "kernels/element.h"

#ifndef _OPENMP
#error "attention must be compiled with -fopenmp: without it the loop over tasks is serial"
#endif

namespace fivefold::ops {

using kernels::BFloat16;
using kernels::Float16;

inline constexpr int64_t kBlock = kAttentionBlock;
inline constexpr float kLog2E = std::numbers::log2e_v<float>;

// c [m, n] (+)= a [m, k] b [k, n]; b laid out by tiles::pack_right.
inline void multiply(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
                     float* c, int64_t ldc, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, /*is_vnni=*/false);
}
inline void multiply(int64_t m, int64_t n, int64_t k, const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb,
                     float* c, int64_t ldc, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, reinterpret_cast<const at::BFloat16*>(a),
                              reinterpret_cast<const at::BFloat16*>(b), c, /*is_vnni=*/true);
}

// Copies `count` key or value rows of the buffer whose first row begins at `source` into a tile [padded, width], in the
// order of the segments' numbering, from row `first` of it; fills the rest with zeros.
template <typename Element, typename Operand>
void stage_key_rows(const Geometry& g, const Element* source, int64_t first, int64_t count, Operand* tile,
                    int64_t padded) {
  g.for_each_run(first, count, [&](int64_t row, int64_t offset, int64_t rows) {
    const int64_t rows_here = offset + rows == count ? padded - offset : rows;
    tiles::stage_rows(source + row * g.layout.kv_stride, g.layout.kv_stride, rows, g.layout.head_dim,
                      tile + offset * g.width, rows_here, g.width);
  });
}

// Zeroes `columns` elements of `size` bytes in the rows [rows.begin, + rows.count) of a buffer.
inline void clear_rows(RowRange rows, void* data, int64_t stride, int64_t columns, int64_t size) {
  char* first = static_cast<char*>(data) + rows.begin * stride * size;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows.count; ++r) {
    std::memset(first + r * stride * size, 0, static_cast<size_t>(columns * size));
  }
}

// Cuts one thread's scratch into buffers.
class Carver {
 public:
  explicit Carver(std::span<std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T* take(int64_t count) {
    T* taken = reinterpret_cast<T*>(bytes_.data());
    bytes_ = bytes_.subspan(static_cast<size_t>(round_up(count * int64_t{sizeof(T)}, 64)));
    return taken;
  }

 private:
  std::span<std::byte> bytes_;
};

// Runs each task on a worker of its thread, made by make_worker(scratch of the thread).
template <typename MakeWorker>
void run_tasks(const std::vector<Task>& tasks, std::span<std::byte> scratch, int64_t bytes_per_thread,
               const MakeWorker& make_worker) {
  const int threads = omp_get_max_threads();
  FIVEFOLD_CHECK(static_cast<int64_t>(scratch.size()) >= threads * bytes_per_thread, "attention: too little scratch");
  FIVEFOLD_CHECK(reinterpret_cast<uintptr_t>(scratch.data()) % 64 == 0);
  const int64_t num_tasks = static_cast<int64_t>(tasks.size());
#pragma omp parallel num_threads(threads)
  {
    auto worker = make_worker(scratch.subspan(static_cast<size_t>(omp_get_thread_num() * bytes_per_thread),
                                              static_cast<size_t>(bytes_per_thread)));
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_tasks; ++i) worker.run(tasks[static_cast<size_t>(i)]);
    at::native::cpublas::brgemm_release();  // gives AMX tiles back; elsewhere nothing
  }
}

// Whether products of bf16 tiles run in hardware. oneDNN takes paired operands from AVX-512 on, but emulates the
// product where the processor has none; fp32 tiles are quicker there.
bool multiplies_bf16();

}  // namespace fivefold::ops
