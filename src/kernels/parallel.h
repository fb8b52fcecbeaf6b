// Internal to src/kernels: the parallel loop over blocks, and sums across them.
//
// Note [Fixed blocks]
// A kernel that sums over rows cuts them into blocks of a fixed size, sums each block into its own partial, and adds
// the partials in block order. Which thread takes a block changes nothing, so results are the same bits for every
// number of threads. The cost is a partial row a block: for 64 rows a block, 1/64 of the matrix.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/integer.h"
#include "kernels/element.h"

namespace fivefold::kernels {

inline constexpr int64_t kBlockRows = 64;
// Elements that a thread takes at a time from a flat range: large against the start of a parallel region, small against
// the caches.
inline constexpr int64_t kBlockElements = 16384;

// Calls f(block, begin, end) for the blocks [begin, end) of [0, n), on a team of num_threads of the calling thread.
template <class F>
void for_each_block(int64_t n, int64_t block_size, int num_threads, const F& f) {
  FIVEFOLD_CHECK(n >= 0 && num_threads >= 1);
  const int64_t num_blocks = div_ceil(n, block_size);
  // A team of one would still be a parallel region; and small work is not worth waking anybody.
  if (num_threads == 1 || num_blocks <= 1) {
    for (int64_t block = 0; block < num_blocks; ++block) {
      f(block, block * block_size, std::min(n, (block + 1) * block_size));
    }
    return;
  }
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t block = 0; block < num_blocks; ++block) {
    f(block, block * block_size, std::min(n, (block + 1) * block_size));
  }
}

// Rows of a block such that it holds about kBlockElements elements: for kernels whose rows are independent.
inline int64_t independent_block_rows(int64_t cols) {
  return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, cols));
}

// target[c] (=, +=) sum over b of partials[b * stride + c], added in order of b in fp64.
void reduce_partials(const float* partials, int64_t num_blocks, int64_t stride, int64_t cols, GradTarget target,
                     int num_threads);

}  // namespace fivefold::kernels
