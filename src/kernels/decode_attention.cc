#include "kernels/decode_attention.h"

#include <algorithm>

#include "kernels/clones.h"
#include "kernels/parallel.h"
#include "kernels/vector_math.h"

// Of the OpenMP runtime. Its header is the compiler's own: a checker of another compiler does not find it.
extern "C" int omp_get_thread_num();

namespace fivefold::kernels {
namespace {

struct Geometry {
  int64_t group, d, stride, blocks;  // query heads of a KV head, head_dim, elements of a cache row, blocks of positions

  // What a task leaves of a query head: weighted values [d], largest score, sum of exponentials.
  int64_t partial() const { return d + 2; }
  // What a thread works with: the group's queries, their scores of a block, and a row of keys or values; all fp32.
  int64_t work() const { return group * (d + kDecodeBlock) + d; }
};

Geometry geometry(int64_t positions, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  return {div_exact(num_heads, num_kv_heads), head_dim, 2 * num_kv_heads * head_dim, div_ceil(positions, kDecodeBlock)};
}

template <class T>
FIVEFOLD_INLINE void widen(const T* from, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
}

// scores[g, p] of `count` positions for the queries of one group.
template <class T>
FIVEFOLD_CLONES void score_block(const Geometry& a, const T* keys, int64_t count, float scale, const float* queries,
                                 float* row, float* scores) {
  for (int64_t p = 0; p < count; ++p) {
    widen(keys + p * a.stride, row, a.d);
    for (int64_t g = 0; g < a.group; ++g) {
      const float* q = queries + g * a.d;
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < a.d; ++i) sum += q[i] * row[i];
      scores[g * kDecodeBlock + p] = sum * scale;
    }
  }
}

// Scores become exp(score - largest).
FIVEFOLD_CLONES void exponentiate(float* scores, int64_t count, float* largest, float* total) {
  float most = scores[0];
#pragma omp simd reduction(max : most)
  for (int64_t p = 0; p < count; ++p) most = std::max(most, scores[p]);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t p = 0; p < count; ++p) {
    scores[p] = exp_f32(scores[p] - most);
    sum += scores[p];
  }
  *largest = most;
  *total = sum;
}

template <class T>
FIVEFOLD_CLONES void weigh_values(const Geometry& a, const T* values, int64_t count, const float* weights, float* row,
                                  float* partials) {
  for (int64_t g = 0; g < a.group; ++g) std::fill_n(partials + g * a.partial(), a.d, 0.0f);
  for (int64_t p = 0; p < count; ++p) {
    widen(values + p * a.stride, row, a.d);
    for (int64_t g = 0; g < a.group; ++g) {
      const float weight = weights[g * kDecodeBlock + p];
      float* sum = partials + g * a.partial();
#pragma omp simd
      for (int64_t i = 0; i < a.d; ++i) sum[i] += weight * row[i];
    }
  }
}

template <class T>
void attend_block(const DecodeAttention<T>& call, const Geometry& a, int64_t head, int64_t block, float* partials,
                  float* work) {
  const int64_t begin = block * kDecodeBlock, count = std::min(call.positions - begin, kDecodeBlock);
  float* queries = work;
  float* scores = queries + a.group * a.d;
  float* row = scores + a.group * kDecodeBlock;
  const T* keys = call.cache + begin * a.stride + head * a.d;
  for (int64_t i = 0; i < a.group * a.d; ++i) queries[i] = to_float(call.q[head * a.group * a.d + i]);
  score_block(a, keys, count, call.scale, queries, row, scores);
  for (int64_t g = 0; g < a.group; ++g) {
    float* statistics = partials + g * a.partial() + a.d;
    exponentiate(scores + g * kDecodeBlock, count, statistics, statistics + 1);
  }
  weigh_values(a, keys + call.num_kv_heads * a.d, count, scores, row, partials);
}

// Adds the blocks of one query head, each on the scale of the largest score of all.
template <class T>
FIVEFOLD_CLONES void join_blocks(const float* partials, int64_t num_blocks, int64_t block_stride, int64_t d, float* sum,
                                 T* out) {
  float most = partials[d];
  for (int64_t b = 1; b < num_blocks; ++b) most = std::max(most, partials[b * block_stride + d]);
  float total = 0;
  std::fill_n(sum, d, 0.0f);
  for (int64_t b = 0; b < num_blocks; ++b) {
    const float* part = partials + b * block_stride;
    const float factor = exp_f32(part[d] - most);
    total += factor * part[d + 1];
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) sum[i] += factor * part[i];
  }
  const float inverse = 1.0f / total;
#pragma omp simd
  for (int64_t i = 0; i < d; ++i) out[i] = from_float<T>(sum[i] * inverse);
}

}  // namespace

int64_t decode_attention_scratch(int64_t positions, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                                 int num_threads) {
  const Geometry a = geometry(positions, num_heads, num_kv_heads, head_dim);
  return num_heads * a.blocks * a.partial() + num_threads * a.work();
}

template <class T>
void decode_attention(const DecodeAttention<T>& call) {
  FIVEFOLD_CHECK(call.positions > 0);
  const Geometry a = geometry(call.positions, call.num_heads, call.num_kv_heads, call.head_dim);
  const int64_t partial = a.group * a.partial();
  float* works = call.scratch + call.num_kv_heads * a.blocks * partial;
  for_each_block(call.num_kv_heads * a.blocks, 1, call.num_threads, [&](int64_t task, int64_t, int64_t) {
    const int thread = call.num_threads == 1 ? 0 : omp_get_thread_num();
    FIVEFOLD_CHECK(thread < call.num_threads);
    attend_block(call, a, div_floor(task, a.blocks), task % a.blocks, call.scratch + task * partial,
                 works + thread * a.work());
  });
  for (int64_t h = 0; h < call.num_heads; ++h) {
    const float* partials = call.scratch + div_floor(h, a.group) * a.blocks * partial + (h % a.group) * a.partial();
    join_blocks(partials, a.blocks, partial, a.d, works, call.out + h * a.d);
  }
}

template void decode_attention(const DecodeAttention<float>&);
template void decode_attention(const DecodeAttention<BFloat16>&);
template void decode_attention(const DecodeAttention<Float16>&);

}  // namespace fivefold::kernels
