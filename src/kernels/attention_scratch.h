// How much scratch the CPU attention kernel takes, as arithmetic without Torch: the kernel cuts its buffers by these
// sizes and the planner predicts them from the same shape. The sizes depend on neither the dtype nor the instruction
// set: operand tiles are counted at four bytes an element, which the fp32 path fills and the bf16 path half fills
// (bf16 on a processor that cannot multiply it runs on fp32 tiles).
#pragma once

#include <cstdint>

#include "base/integer.h"

namespace fivefold {

// What of an attention call decides its scratch. `max_segment_keys` is the most keys of a segment: the longest
// document's length, where documents see themselves.
struct AttentionShape {
  int64_t max_segment_keys = 0;
  int64_t head_dim = 0;
};

// Query rows of a tile, and keys of a block: every matrix product is over whole blocks, padded with zeros.
inline constexpr int64_t kAttentionBlock = 64;
// Keys that are packed and multiplied at once, forward and backward.
inline constexpr int64_t kAttentionForwardStrip = 512;
inline constexpr int64_t kAttentionBackwardStrip = 256;
// Query tiles (of different heads of a group, or of neighbouring blocks) that share one packed strip.
inline constexpr int64_t kAttentionUnits = 4;
// Head width of the tiles: operands are padded to whole vectors.
constexpr int64_t attention_tile_width(int64_t head_dim) { return round_up(head_dim, 16); }
// Elements (padded keys x tile width) up to which backward keeps the key and value gradients of a whole segment in
// scratch, and so computes each score once. Longer segments compute the scores twice, in two passes.
inline constexpr int64_t kAttentionFusedElements = int64_t{1} << 18;

constexpr bool attention_backward_fits_fused(const AttentionShape& shape) {
  return round_up(shape.max_segment_keys, kAttentionBackwardStrip) * attention_tile_width(shape.head_dim) <=
         kAttentionFusedElements;
}
// Keys whose gradients one thread keeps at a time.
constexpr int64_t attention_backward_kept_keys(const AttentionShape& shape) {
  return attention_backward_fits_fused(shape) ? round_up(shape.max_segment_keys, kAttentionBackwardStrip)
                                              : kAttentionBackwardStrip;
}

// Bytes of forward scratch for one thread, w = padded head width:
//   4 units x (query tile + output tile) x 64 w x 4, one tile in passing 64 w x 4, keys and values of a strip
//   2 x 512 w x 4, scores 64 x 512 x 4 and their bf16 copy 64 x 512 x 2, running maximum and sum 4 x 2 x 64 x 4
//   = 6400 w + 198656.                                       w = 64: 608256 bytes; w = 128: 1017856 bytes.
constexpr int64_t attention_forward_scratch_bytes_per_thread(const AttentionShape& shape) {
  const int64_t width = attention_tile_width(shape.head_dim);
  const int64_t tiles = (2 * kAttentionUnits + 1) * kAttentionBlock * width;
  const int64_t strip = 2 * kAttentionForwardStrip * width;
  const int64_t scores = kAttentionBlock * kAttentionForwardStrip;
  const int64_t row_statistics = kAttentionUnits * 2 * kAttentionBlock;
  return 4 * (tiles + strip + scores + row_statistics) + 2 * scores;
}

// Bytes of backward scratch for one thread, w = padded head width, n = padded keys whose gradients are kept:
//   4 units x (4 packed operands + query gradient) x 64 w x 4, one tile in passing 64 w x 4, keys, values and
//   transposed keys 3 x 256 w x 4, two score tiles 2 x 256 x 64 x 4 and three bf16 copies 3 x 256 x 64 x 2, log-sum-exp
//   and row dots 4 x 2 x 64 x 4, key and value gradients 2 n w x 4 = 8448 w + 231424 + 8 n w,   n = the most
//   keys of a segment rounded up to 256 where n w <= 2^18, otherwise 256. w = 64, 512 keys: 1034240 bytes; w = 128,
//   2048 keys: 3409920 bytes (the largest for w = 128).
constexpr int64_t attention_backward_scratch_bytes_per_thread(const AttentionShape& shape) {
  const int64_t width = attention_tile_width(shape.head_dim);
  const int64_t tiles = (5 * kAttentionUnits + 1) * kAttentionBlock * width;
  const int64_t strip = 3 * kAttentionBackwardStrip * width;
  const int64_t scores = kAttentionBackwardStrip * kAttentionBlock;
  const int64_t row_statistics = kAttentionUnits * 2 * kAttentionBlock;
  return 4 * (tiles + strip + 2 * scores + row_statistics + 2 * attention_backward_kept_keys(shape) * width) +
         3 * 2 * scores;
}

}  // namespace fivefold
