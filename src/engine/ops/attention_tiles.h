// The loops of CPU attention that are not matrix products: copying rows into padded tiles, laying tiles out as the
// right operand of a product, softmax over score tiles, and writing tiles back. Free functions over raw pointers,
// compiled for several instruction sets and chosen at load time.
//
// A tile holds `operand` elements: float, or bf16 where the processor multiplies it. The right operand of a bf16
// product is stored as pairs: word [k/2][n] holds elements (k, n) and (k + 1, n). An fp32 right operand is plain rows.
// So the transpose of bf16 rows as a right operand is the transpose of their 32-bit words.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::ops::tiles {

using kernels::BFloat16;
using kernels::Float16;

// Copies `rows` rows of `columns` elements into a contiguous [padded_rows, width] tile and fills the rest with zeros.
void stage_rows(const float* source, int64_t stride, int64_t rows, int64_t columns, float* tile, int64_t padded_rows,
                int64_t width);
void stage_rows(const BFloat16* source, int64_t stride, int64_t rows, int64_t columns, float* tile, int64_t padded_rows,
                int64_t width);
void stage_rows(const Float16* source, int64_t stride, int64_t rows, int64_t columns, float* tile, int64_t padded_rows,
                int64_t width);
void stage_rows(const BFloat16* source, int64_t stride, int64_t rows, int64_t columns, BFloat16* tile,
                int64_t padded_rows, int64_t width);

// Lays the tile [rows, width] out as the right operand with k = rows, n = width (leading dimension `width`).
// REQUIRES: rows is even.
void pack_right(const float* tile, int64_t rows, int64_t width, float* packed);
void pack_right(const BFloat16* tile, int64_t rows, int64_t width, BFloat16* packed);

// Lays the transpose of the tile out as the right operand with k = width, n = rows, leading dimension `ld`.
// REQUIRES: rows and width are multiples of 16.
void pack_right_transposed(const float* tile, int64_t rows, int64_t width, float* packed, int64_t ld);
void pack_right_transposed(const BFloat16* tile, int64_t rows, int64_t width, BFloat16* packed, int64_t ld);

// Writes the transpose of the tile as plain rows [width, rows] with leading dimension `ld`: a left operand. `passing`
// is as large as the tile.
void transpose_left(const float* tile, int64_t rows, int64_t width, float* passing, float* transposed, int64_t ld);
void transpose_left(const BFloat16* tile, int64_t rows, int64_t width, BFloat16* passing, BFloat16* transposed,
                    int64_t ld);

// One strip of online softmax on 64 rows of scores [64, ld], of which `keys` columns are in use. Row r sees the columns
// below first_row_keys + r keys_per_row: one key more a row under a causal mask, the same keys (0) without a mask. A
// row that sees no key of its first strip is not allowed; of later strips it may see none. Replaces scores by
// probabilities relative to the running maximum, brings `row_max` (in units of scaled base-2 exponents), `row_sum` and
// the rows of `output` [64, width] up to date with it. The float form works in place: `probabilities` is `scores`.
struct SoftmaxStrip {
  int64_t keys = 0;
  int64_t ld = 0;
  int64_t first_row_keys = 0;
  int64_t keys_per_row = 1;
  float scale_log2 = 0.0f;  // scale of the scores / ln 2
  int64_t width = 0;
};
void softmax_strip(const SoftmaxStrip& strip, float* scores, float* probabilities, float* row_max, float* row_sum,
                   float* output);
void softmax_strip(const SoftmaxStrip& strip, float* scores, BFloat16* probabilities, float* row_max, float* row_sum,
                   float* output);

// Probabilities and score gradients of `keys` keys (an even number) by 64 queries, from key-major scores and
// probability gradients [keys, 64]. Query c sees key r when (r - first_query_offset) queries_per_key <= c: with 1 the
// causal mask; with 64 all queries see the keys up to first_query_offset, and none those beyond.
//   p = 2^(scale_log2 scores - lse_log2), d_scores = p (d_p - row_dot), zero where masked.
// The float form works in place (p on scores, d_scores on d_p) and its right operand is d_scores itself.
struct GradientStrip {
  int64_t keys = 0;
  int64_t first_query_offset = 0;
  int64_t queries_per_key = 1;
  float scale_log2 = 0.0f;
};
void softmax_gradient(const GradientStrip& strip, float* scores, float* d_p, const float* lse_log2,
                      const float* row_dot);
void softmax_gradient(const GradientStrip& strip, const float* scores, const float* d_p, const float* lse_log2,
                      const float* row_dot, BFloat16* p, BFloat16* d_scores, BFloat16* d_scores_right);

// row_dot[r] = sum of a[r] b[r] over `columns` elements, in fp32.
void row_dots(const float* a, const float* b, int64_t stride, int64_t rows, int64_t columns, float* row_dot);
void row_dots(const BFloat16* a, const BFloat16* b, int64_t stride, int64_t rows, int64_t columns, float* row_dot);
void row_dots(const Float16* a, const Float16* b, int64_t stride, int64_t rows, int64_t columns, float* row_dot);

// Writes (or adds) rows of the fp32 tile [rows, width], each times its factor, as elements.
void write_rows(const float* tile, int64_t width, const float* row_factor, int64_t rows, int64_t columns,
                kernels::Accumulate mode, float* out, int64_t stride);
void write_rows(const float* tile, int64_t width, const float* row_factor, int64_t rows, int64_t columns,
                kernels::Accumulate mode, BFloat16* out, int64_t stride);
void write_rows(const float* tile, int64_t width, const float* row_factor, int64_t rows, int64_t columns,
                kernels::Accumulate mode, Float16* out, int64_t stride);

}  // namespace fivefold::ops::tiles
