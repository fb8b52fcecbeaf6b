#include "kernels/attention_merge.h"

#include <cmath>
#include <limits>

#include "kernels/clones.h"

namespace fivefold::kernels {
namespace {

// to[c] = to[c] keep + from[c] add.
FIVEFOLD_CLONES void blend(const float* from, float add, float keep, int64_t cols, float* to) {
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) to[c] = to[c] * keep + from[c] * add;
}

}  // namespace

void merge_attention(const AttentionPartial& partial, float* out, int64_t out_stride, float* lse) {
  for (int64_t r = 0; r < partial.rows; ++r) {
    const float before = lse[r], added = partial.lse[r];
    if (added == -std::numeric_limits<float>::infinity()) continue;
    const float e = std::exp(-std::abs(before - added));
    const float larger = 1.0f / (1.0f + e), smaller = e / (1.0f + e);
    const bool grows = added > before;
    lse[r] = (grows ? added : before) + std::log1p(e);
    blend(partial.out + r * partial.out_stride, (grows ? larger : smaller) * partial.row_factor[r],
          grows ? smaller : larger, partial.cols, out + r * out_stride);
  }
}

}  // namespace fivefold::kernels
