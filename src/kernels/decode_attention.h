// Attention of one token over the keys and values of all tokens up to it: what generation does for each token after the
// prompt. Grouped query heads; no window, no bias.
//
// A cache row holds the key heads of one position, then its value heads; query head h reads head h / (num_heads /
// num_kv_heads). Positions are cut into blocks of kDecodeBlock: each (KV head, block) is a task that reads its keys and
// values once for all query heads of the group, and leaves the largest score, the sum of exponentials and the weighted
// values; the blocks of a head are then put together in order. Results do not depend on num_threads. Scores, softmax
// and sums are fp32. Thread-safe.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

inline constexpr int64_t kDecodeBlock = 128;  // positions

template <class T>
struct DecodeAttention {
  const T* q = nullptr;      // [num_heads, head_dim]
  const T* cache = nullptr;  // [positions, 2 num_kv_heads head_dim]
  T* out = nullptr;          // [num_heads, head_dim]
  float* scratch = nullptr;  // [decode_attention_scratch()]
  int64_t positions = 0;     // at least 1; the last one is that of q
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t head_dim = 0;
  float scale = 0;  // of the scores
  int num_threads = 1;
};
template <class T>
void decode_attention(const DecodeAttention<T>&);

// Elements of scratch for up to `positions` positions.
int64_t decode_attention_scratch(int64_t positions, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                                 int num_threads);

}  // namespace fivefold::kernels
