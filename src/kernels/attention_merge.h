// Merging of partial results of attention: softmax over two disjoint sets of keys from the softmax over each. What ring
// attention and every other split of the keys needs. Serial: the attention kernel calls it for the rows of a task.
//
// With log-sum-exps a and b of a query's scores and outputs x and y over the two sets, the result over both is
//   m = max(a, b), e = exp(-|a - b|), lse = m + log(1 + e), out = (the output of the larger + e the other) / (1 + e).
// Weights come from the difference alone, not from exp(a - lse), so that their error does not grow with the scores.
#pragma once

#include <cstdint>

namespace fivefold::kernels {

// A partial result of `rows` queries: row r of the output is row_factor[r] times row r of `out`.
struct AttentionPartial {
  const float* out = nullptr;
  int64_t out_stride = 0;  // elements between rows
  const float* row_factor = nullptr;
  const float* lse = nullptr;  // minus infinity: no key yet, and the row of `out` is not used
  int64_t rows = 0;
  int64_t cols = 0;
};

// Merges `partial` into the rows of `out` and `lse`. A row that has seen no key holds zeros and minus infinity.
void merge_attention(const AttentionPartial& partial, float* out, int64_t out_stride, float* lse);

}  // namespace fivefold::kernels
