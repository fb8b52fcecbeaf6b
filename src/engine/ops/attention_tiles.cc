#include "engine/ops/attention_tiles.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/attention_scratch.h"
#include "kernels/clones.h"

// Each function below is cloned for several instruction sets. Their bodies are always inlined, or they would stay at
// the baseline.
namespace fivefold::ops::tiles {
namespace {

using kernels::from_float;
using kernels::to_float;

// 2^x for x <= 0 (a little above is fine): 1 at 0, exactly 0 up to -127: half the work of the general exp_f32. The
// polynomial is the minimax one of degree 5 for 2^f, |f| <= 1/2, with its constant term set to 1: relative error below
// 2e-7 with rounding.
FIVEFOLD_INLINE float exp2_of(float x) {
  constexpr float kRoundToInteger = 12582912.0f;    // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float clamped = -127.0f > x ? -127.0f : x;  // this order lets NaN through
  const float shifted = clamped + kRoundToInteger;
  const float f = clamped - (shifted - kRoundToInteger);
  float y = 1.3276472e-3f;
  y = y * f + 9.675541e-3f;
  y = y * f + 5.5507131e-2f;
  y = y * f + 2.4022120e-1f;
  y = y * f + 6.9314694e-1f;
  y = y * f + 1.0f;
  // At -127, f is 0 and y is 1, whose exponent bits the integer part cancels to an exact zero.
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) + (std::bit_cast<uint32_t>(shifted) << 23));
}

// A tile element of an fp32 value, rounded to nearest, ties away from zero: one addition, where from_float spends six
// operations on ties to even and NaN. Ties are one in 2^16, and a NaN that arises here, from bf16 inputs or from
// arithmetic, has no bits in the half that is rounded away.
template <typename Operand>
FIVEFOLD_INLINE Operand operand_of(float value) {
  if constexpr (std::is_same_v<Operand, float>) {
    return value;
  } else {
    return BFloat16{static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + 0x8000u) >> 16)};
  }
}

template <typename Source, typename Operand>
FIVEFOLD_INLINE void stage(const Source* source, int64_t stride, int64_t rows, int64_t columns, Operand* tile,
                           int64_t padded_rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    const Source* in = source + r * stride;
    Operand* out = tile + r * width;
    if constexpr (std::is_same_v<Source, Operand>) {
      std::memcpy(out, in, sizeof(Operand) * columns);
    } else {
      for (int64_t c = 0; c < columns; ++c) out[c] = to_float(in[c]);
    }
    for (int64_t c = columns; c < width; ++c) out[c] = Operand{};
  }
  for (int64_t i = rows * width; i < padded_rows * width; ++i) tile[i] = Operand{};
}

typedef uint32_t Words __attribute__((vector_size(32)));

// Transposes [rows, columns] 32-bit words in blocks of 8 by 8.
FIVEFOLD_INLINE void transpose_words(const void* source, int64_t source_ld, int64_t rows, int64_t columns,
                                     void* destination, int64_t destination_ld) {
  const char* in = static_cast<const char*>(source);
  char* out = static_cast<char*>(destination);
  for (int64_t r = 0; r < rows; r += 8) {
    for (int64_t c = 0; c < columns; c += 8) {
      Words a[8], b[8];
      for (int i = 0; i < 8; ++i) std::memcpy(&a[i], in + ((r + i) * source_ld + c) * 4, sizeof(Words));
      for (int i = 0; i < 8; i += 2) {  // pairs of rows: words
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
      }
      for (int i = 0; i < 8; i += 4) {  // fours: pairs of words
        for (int j = 0; j < 2; ++j) {
          a[i + 2 * j] = __builtin_shufflevector(b[i + j], b[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
          a[i + 2 * j + 1] = __builtin_shufflevector(b[i + j], b[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
      }
      for (int i = 0; i < 4; ++i) {  // eights: halves
        b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
      }
      for (int i = 0; i < 8; ++i) std::memcpy(out + ((c + i) * destination_ld + r) * 4, &b[i], sizeof(Words));
    }
  }
}

template <typename Operand>
FIVEFOLD_INLINE void softmax_rows(const SoftmaxStrip& strip, float* all_scores, Operand* probabilities, float* row_max,
                                  float* row_sum, float* output) {
  const int64_t keys = strip.keys;
  const float scale = strip.scale_log2;
  for (int64_t r = 0; r < kAttentionBlock; ++r) {
    float* scores = all_scores + r * strip.ld;
    Operand* p = probabilities + r * strip.ld;
    const int64_t visible = std::max<int64_t>(0, strip.first_row_keys + r * strip.keys_per_row);
    for (int64_t c = visible; c < keys; ++c) scores[c] = -std::numeric_limits<float>::infinity();
    float largest = scores[0];
#pragma omp simd reduction(max : largest)
    for (int64_t c = 0; c < keys; ++c) largest = scores[c] > largest ? scores[c] : largest;
    const float old_max = row_max[r];
    const float scaled = largest * scale;
    const float new_max = scaled > old_max ? scaled : old_max;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < keys; ++c) {
      const float e = exp2_of(scores[c] * scale - new_max);
      sum += e;
      p[c] = operand_of<Operand>(e);
    }
    if (new_max != old_max) {
      const float correction = exp2_of(old_max - new_max);
      row_sum[r] *= correction;
      float* out = output + r * strip.width;
#pragma omp simd
      for (int64_t c = 0; c < strip.width; ++c) out[c] *= correction;
    }
    row_max[r] = new_max;
    row_sum[r] += sum;
  }
}

// One key's row over the 64 queries.
template <typename Operand>
FIVEFOLD_INLINE void gradient_row(const GradientStrip& strip, int64_t key, const float* scores, const float* d_p,
                                  const float* lse_log2, const float* row_dot, Operand* p, Operand* d_scores) {
  // Clamped, so that the comparison below is one of 32-bit numbers.
  const int64_t hidden_queries = (key - strip.first_query_offset) * strip.queries_per_key;
  const int32_t hidden = static_cast<int32_t>(std::clamp<int64_t>(hidden_queries, 0, kAttentionBlock));
#pragma omp simd
  for (int32_t c = 0; c < static_cast<int32_t>(kAttentionBlock); ++c) {
    const float probability = exp2_of(scores[c] * strip.scale_log2 - lse_log2[c]);
    const float gradient = probability * (d_p[c] - row_dot[c]);
    p[c] = operand_of<Operand>(c < hidden ? 0.0f : probability);
    d_scores[c] = operand_of<Operand>(c < hidden ? 0.0f : gradient);
  }
}

// Word c = (low[c], high[c]).
FIVEFOLD_INLINE void interleave(const BFloat16* low, const BFloat16* high, int64_t count, BFloat16* pairs) {
#pragma omp simd
  for (int64_t c = 0; c < count; ++c) {
    const uint32_t word = low[c].bits | static_cast<uint32_t>(high[c].bits) << 16;
    std::memcpy(pairs + 2 * c, &word, sizeof word);
  }
}

template <typename Element>
FIVEFOLD_INLINE void dots(const Element* a, const Element* b, int64_t stride, int64_t rows, int64_t columns,
                          float* row_dot) {
  for (int64_t r = 0; r < rows; ++r) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < columns; ++c) sum += to_float(a[r * stride + c]) * to_float(b[r * stride + c]);
    row_dot[r] = sum;
  }
}

template <typename Element>
FIVEFOLD_INLINE void write(const float* tile, int64_t width, const float* row_factor, int64_t rows, int64_t columns,
                           kernels::Accumulate mode, Element* out, int64_t stride) {
  if (mode == kernels::Accumulate::kOverwrite) {
    for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c)
        out[r * stride + c] = from_float<Element>(tile[r * width + c] * row_factor[r]);
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    Element* to = out + r * stride;
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c)
      to[c] = from_float<Element>(to_float(to[c]) + tile[r * width + c] * row_factor[r]);
  }
}

}  // namespace

FIVEFOLD_CLONES void stage_rows(const float* source, int64_t stride, int64_t rows, int64_t columns, float* tile,
                                int64_t padded_rows, int64_t width) {
  stage(source, stride, rows, columns, tile, padded_rows, width);
}
FIVEFOLD_CLONES void stage_rows(const BFloat16* source, int64_t stride, int64_t rows, int64_t columns, float* tile,
                                int64_t padded_rows, int64_t width) {
  stage(source, stride, rows, columns, tile, padded_rows, width);
}
FIVEFOLD_CLONES void stage_rows(const Float16* source, int64_t stride, int64_t rows, int64_t columns, float* tile,
                                int64_t padded_rows, int64_t width) {
  stage(source, stride, rows, columns, tile, padded_rows, width);
}
FIVEFOLD_CLONES void stage_rows(const BFloat16* source, int64_t stride, int64_t rows, int64_t columns, BFloat16* tile,
                                int64_t padded_rows, int64_t width) {
  stage(source, stride, rows, columns, tile, padded_rows, width);
}

void pack_right(const float* tile, int64_t rows, int64_t width, float* packed) {
  std::memcpy(packed, tile, sizeof(float) * rows * width);
}
FIVEFOLD_CLONES void pack_right(const BFloat16* tile, int64_t rows, int64_t width, BFloat16* packed) {
  for (int64_t r = 0; r < rows; r += 2) {
    interleave(tile + r * width, tile + (r + 1) * width, width, packed + r * width);
  }
}

FIVEFOLD_CLONES void pack_right_transposed(const float* tile, int64_t rows, int64_t width, float* packed, int64_t ld) {
  transpose_words(tile, width, rows, width, packed, ld);
}
FIVEFOLD_CLONES void pack_right_transposed(const BFloat16* tile, int64_t rows, int64_t width, BFloat16* packed,
                                           int64_t ld) {
  transpose_words(tile, width / 2, rows, width / 2, packed, ld);
}

FIVEFOLD_CLONES void transpose_left(const float* tile, int64_t rows, int64_t width, float* /*passing*/,
                                    float* transposed, int64_t ld) {
  transpose_words(tile, width, rows, width, transposed, ld);
}
FIVEFOLD_CLONES void transpose_left(const BFloat16* tile, int64_t rows, int64_t width, BFloat16* passing,
                                    BFloat16* transposed, int64_t ld) {
  transpose_words(tile, width / 2, rows, width / 2, passing, rows);
  for (int64_t c = 0; c < width; c += 2) {
    const BFloat16* pairs = passing + c * rows;
    BFloat16* low = transposed + c * ld;
    BFloat16* high = low + ld;
#pragma omp simd
    for (int64_t r = 0; r < rows; ++r) {
      uint32_t word;
      std::memcpy(&word, pairs + 2 * r, sizeof word);
      low[r].bits = static_cast<uint16_t>(word);
      high[r].bits = static_cast<uint16_t>(word >> 16);
    }
  }
}

FIVEFOLD_CLONES void softmax_strip(const SoftmaxStrip& strip, float* scores, float* probabilities, float* row_max,
                                   float* row_sum, float* output) {
  softmax_rows(strip, scores, probabilities, row_max, row_sum, output);
}
FIVEFOLD_CLONES void softmax_strip(const SoftmaxStrip& strip, float* scores, BFloat16* probabilities, float* row_max,
                                   float* row_sum, float* output) {
  softmax_rows(strip, scores, probabilities, row_max, row_sum, output);
}

FIVEFOLD_CLONES void softmax_gradient(const GradientStrip& strip, float* scores, float* d_p, const float* lse_log2,
                                      const float* row_dot) {
  for (int64_t r = 0; r < strip.keys; ++r) {
    float* s = scores + r * kAttentionBlock;
    float* d = d_p + r * kAttentionBlock;
    gradient_row(strip, r, s, d, lse_log2, row_dot, s, d);
  }
}
FIVEFOLD_CLONES void softmax_gradient(const GradientStrip& strip, const float* scores, const float* d_p,
                                      const float* lse_log2, const float* row_dot, BFloat16* p, BFloat16* d_scores,
                                      BFloat16* d_scores_right) {
  for (int64_t r = 0; r < strip.keys; r += 2) {
    for (int64_t i = r * kAttentionBlock; i < (r + 2) * kAttentionBlock; i += kAttentionBlock) {
      gradient_row(strip, i / kAttentionBlock, scores + i, d_p + i, lse_log2, row_dot, p + i, d_scores + i);
    }
    const BFloat16* low = d_scores + r * kAttentionBlock;
    interleave(low, low + kAttentionBlock, kAttentionBlock, d_scores_right + r * kAttentionBlock);
  }
}

FIVEFOLD_CLONES void row_dots(const float* a, const float* b, int64_t stride, int64_t rows, int64_t columns,
                              float* row_dot) {
  dots(a, b, stride, rows, columns, row_dot);
}
FIVEFOLD_CLONES void row_dots(const BFloat16* a, const BFloat16* b, int64_t stride, int64_t rows, int64_t columns,
                              float* row_dot) {
  dots(a, b, stride, rows, columns, row_dot);
}

FIVEFOLD_CLONES void row_dots(const Float16* a, const Float16* b, int64_t stride, int64_t rows, int64_t columns,
                              float* row_dot) {
  dots(a, b, stride, rows, columns, row_dot);
}

FIVEFOLD_CLONES void write_rows(const float* tile, int64_t width, const float* row_factor, int64_t rows,
                                int64_t columns, kernels::Accumulate mode, float* out, int64_t stride) {
  write(tile, width, row_factor, rows, columns, mode, out, stride);
}
FIVEFOLD_CLONES void write_rows(const float* tile, int64_t width, const float* row_factor, int64_t rows,
                                int64_t columns, kernels::Accumulate mode, BFloat16* out, int64_t stride) {
  write(tile, width, row_factor, rows, columns, mode, out, stride);
}
FIVEFOLD_CLONES void write_rows(const float* tile, int64_t width, const float* row_factor, int64_t rows,
                                int64_t columns, kernels::Accumulate mode, Float16* out, int64_t stride) {
  write(tile, width, row_factor, rows, columns, mode, out, stride);
}

}  // namespace fivefold::ops::tiles
