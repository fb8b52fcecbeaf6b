// Attention on the CPU, forward and backward, over raw pointers: the engine's own tiles in place of ATen's flash
// attention. It is native in what training needs: packed QKV rows as the projection wrote them, grouped query heads,
// documents packed one after the other, and queries whose keys lie elsewhere, as under context parallelism. It has no
// sliding window, no bias and no dropout.
//
// What sees what. A call has query rows and key rows and a list of segments (spec/attention_segments.h), each a range
// of queries against a range of keys, causal or full. Causal self-attention of packed documents is one segment a
// document, with q, k and v in one buffer (packed_segments(), packed_inputs(), packed_gradients()).
//   A query row is in at most one segment of a call. Segments whose key ranges overlap begin at the same key. Other
//   calls are refused by a check. Order of the list: matters only to the order of sums.
//   Rows that no segment covers, and segments without rows: output 0, log-sum-exp minus infinity, gradient 0.
//
// Keys in several calls (a ring). The first call overwrites an fp32 output, each further one merges into it
// (AttentionOutput::Mode::kMerge) with the log-sum-exps, in fp32 (kernels/attention_merge.h). In backward each call
// takes the output and log-sum-exp of the whole, and adds to fp32 gradients of queries and keys. Nothing but `o` in the
// elements' type is needed for the row sums of o d_o, and they are recomputed: a read of o beside that of d_o.
//
// Layout. A row of q holds a query heads, rows of k and of v hold k key heads, each d wide; rows are `q_stride` and
// `kv_stride` elements apart. Query head h reads key head h / (a / k). `o` and `d_o` are [q_rows, a d] without gaps,
// `lse` is [a, q_rows].
//
// Precision. Elements are fp32, bf16 or fp16; scores, softmax and every sum are fp32. With bf16, probabilities and
// score gradients are rounded to bf16 before they are multiplied, as on a GPU. fp16 is widened to fp32 tiles, in which
// nothing overflows.
//
// Threads. Runs on omp_get_max_threads() threads of the caller (what at::set_num_threads sets). Results are the same
// bits for every number of threads: each output is summed by one task in one order (Note [Order of sums] in the source
// file). Bits hold per instruction set. May be called from several threads at once, each with its own scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention_scratch.h"
#include "kernels/element.h"
#include "spec/attention_segments.h"

namespace fivefold::ops {

// Segments and geometry of a call.
struct AttentionLayout {
  std::span<const AttentionSegment> segments;
  int64_t q_rows = 0;        // rows of q, o, d_o, lse and the gradient of q
  int64_t kv_rows = 0;       // rows of k, v and their gradients
  int64_t num_heads = 0;     // a
  int64_t num_kv_heads = 0;  // k, divides a
  int64_t head_dim = 0;      // d, any positive number; multiples of 16 are not padded
  int64_t q_stride = 0;      // elements between rows of q, at least a d
  int64_t kv_stride = 0;     // elements between rows of k and of v, at least k d
  float scale = 0.0f;        // factor of the scores, positive; 1/sqrt(d) in most models

  // Where key rows lie, in chunks of `kv_chunk_rows`: row i of the segments' numbering is row
  // kv_chunks[i / kv_chunk_rows] * kv_chunk_rows + i % kv_chunk_rows of k, v and their gradients. A permutation of the
  // chunks of all kv_rows, or empty: row i is row i. See gathered_chunks().
  std::span<const int32_t> kv_chunks;
  int64_t kv_chunk_rows = 0;

  AttentionShape shape() const;
};

// First rows of each.
template <typename Element>
struct AttentionInputs {
  const Element* q = nullptr;
  const Element* k = nullptr;
  const Element* v = nullptr;
};

// Where the output goes: [q_rows, a d].
struct AttentionOutput {
  enum class Mode : uint8_t {
    kOverwrite,  // all rows of output and log-sum-exp are written
    kMerge,      // the rows of segments are merged into what is there, which must be fp32; other rows stay
  };
  void* data = nullptr;
  kernels::ElementType type = kernels::ElementType::kFloat32;
  Mode mode = Mode::kOverwrite;
};

// Where a gradient goes: rows as those of the tensor it belongs to. kOverwrite writes all rows, kAdd adds to those of
// segments. A call on several blocks of keys wants fp32 sums: bf16 is rounded each time.
struct AttentionGradient {
  void* data = nullptr;
  kernels::ElementType type = kernels::ElementType::kFloat32;
  int64_t stride = 0;  // elements between rows
  kernels::Accumulate mode = kernels::Accumulate::kOverwrite;
};
struct AttentionGradients {
  AttentionGradient q, k, v;
};

// Bytes of scratch that a call on `num_threads` threads needs.
int64_t attention_forward_scratch_bytes(const AttentionShape& shape, int num_threads);
int64_t attention_backward_scratch_bytes(const AttentionShape& shape, int num_threads);

// o = softmax(scale Q K^T, masked) V and the natural log-sum-exp of each row of scaled scores.
// REQUIRES: scratch is 64-byte aligned and holds attention_forward_scratch_bytes(layout.shape(), threads) bytes.
template <typename Element>
void attention_forward(const AttentionLayout& layout, const AttentionInputs<Element>& inputs,
                       const AttentionOutput& output, float* lse, std::span<std::byte> scratch);

// The gradients of q, k and v, given o and lse over all keys of each query, be they keys of this call or not, and the
// gradient d_o of o. Key and value gradients are summed over the query heads of their group and over the segments.
// REQUIRES: scratch is 64-byte aligned and holds attention_backward_scratch_bytes(layout.shape(), threads) bytes.
template <typename Element>
void attention_backward(const AttentionLayout& layout, const AttentionInputs<Element>& inputs, const Element* o,
                        const float* lse, const Element* d_o, const AttentionGradients& gradients,
                        std::span<std::byte> scratch);

// Rows as the projection of q, k and v writes them: a query heads, then k key heads, then k value heads.
template <typename Element>
AttentionInputs<Element> packed_inputs(const AttentionLayout& layout, const Element* qkv) {
  const int64_t keys = layout.num_heads * layout.head_dim;
  return {qkv, qkv + keys, qkv + keys + layout.num_kv_heads * layout.head_dim};
}
// The gradient of such rows, overwritten; rows are q_stride = kv_stride elements apart.
template <typename Element>
AttentionGradients packed_gradients(const AttentionLayout& layout, Element* d_qkv) {
  const int64_t keys = layout.num_heads * layout.head_dim;
  const auto at = [&](Element* first) {
    return AttentionGradient{.data = first, .type = kernels::kElementTypeOf<Element>, .stride = layout.q_stride};
  };
  return {at(d_qkv), at(d_qkv + keys), at(d_qkv + keys + layout.num_kv_heads * layout.head_dim)};
}

extern template void attention_forward<float>(const AttentionLayout&, const AttentionInputs<float>&,
                                              const AttentionOutput&, float*, std::span<std::byte>);
extern template void attention_forward<kernels::BFloat16>(const AttentionLayout&,
                                                          const AttentionInputs<kernels::BFloat16>&,
                                                          const AttentionOutput&, float*, std::span<std::byte>);
extern template void attention_backward<float>(const AttentionLayout&, const AttentionInputs<float>&, const float*,
                                               const float*, const float*, const AttentionGradients&,
                                               std::span<std::byte>);
extern template void attention_backward<kernels::BFloat16>(const AttentionLayout&,
                                                           const AttentionInputs<kernels::BFloat16>&,
                                                           const kernels::BFloat16*, const float*,
                                                           const kernels::BFloat16*, const AttentionGradients&,
                                                           std::span<std::byte>);
extern template void attention_forward<kernels::Float16>(const AttentionLayout&,
                                                         const AttentionInputs<kernels::Float16>&,
                                                         const AttentionOutput&, float*, std::span<std::byte>);
extern template void attention_backward<kernels::Float16>(const AttentionLayout&,
                                                          const AttentionInputs<kernels::Float16>&,
                                                          const kernels::Float16*, const float*,
                                                          const kernels::Float16*, const AttentionGradients&,
                                                          std::span<std::byte>);

}  // namespace fivefold::ops
