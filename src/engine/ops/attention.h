// Causal attention on the CPU, forward and backward, over raw pointers: the engine's own tiles in place of ATen's flash
// attention. It is native in what training needs: packed QKV rows as the projection wrote them, grouped query heads,
// and documents packed one after the other, each of which sees only itself. It has no sliding window, no bias and no
// dropout; a query sees every earlier token of its document.
//
// Layout. A row of `qkv` holds a query heads, then k key heads, then k value heads, each d wide, (a + 2k) d elements;
// rows are `qkv_stride` elements apart. Query head h reads key head h / (a / k). `o` and `d_o` are [tokens, a d]
// without gaps, `lse` is [a, tokens]. Document i is the rows [cu_seqlens[i], cu_seqlens[i+1]); documents may be empty.
// A plain batch of B rows of S tokens is B documents of S tokens.
//
// Precision. Elements are fp32 or bf16; scores, softmax and every sum are fp32. With bf16, probabilities and score
// gradients are rounded to bf16 before they are multiplied, as on a GPU.
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

namespace fivefold::ops {

// Documents and geometry of a call.
struct AttentionLayout {
  std::span<const int32_t> cu_seqlens;  // num_documents + 1 offsets, first 0, not decreasing, last = rows
  int64_t num_heads = 0;                // a
  int64_t num_kv_heads = 0;             // k, divides a
  int64_t head_dim = 0;                 // d, any positive number; multiples of 16 are not padded
  int64_t qkv_stride = 0;               // elements between rows of qkv and of d_qkv, at least (a + 2k) d
  float scale = 0.0f;                   // factor of the scores, positive; 1/sqrt(d) in most models

  AttentionShape shape() const;
};

// Bytes of scratch that a call on `num_threads` threads needs.
int64_t attention_forward_scratch_bytes(const AttentionShape& shape, int num_threads);
int64_t attention_backward_scratch_bytes(const AttentionShape& shape, int num_threads);

// Writes o = softmax(scale Q K^T, causal within documents) V and the natural log-sum-exp of each row of scaled scores.
// REQUIRES: scratch is 64-byte aligned and holds attention_forward_scratch_bytes(layout.shape(), threads) bytes.
template <typename Element>
void attention_forward(const AttentionLayout& layout, const Element* qkv, Element* o, float* lse,
                       std::span<std::byte> scratch);

// Writes (does not add to) the gradient of all of qkv, given o and lse of the forward and the gradient d_o of o. Key
// and value gradients are summed over the query heads of their group. REQUIRES: scratch is 64-byte aligned and holds
// attention_backward_scratch_bytes(layout.shape(), threads) bytes.
template <typename Element>
void attention_backward(const AttentionLayout& layout, const Element* qkv, const Element* o, const float* lse,
                        const Element* d_o, Element* d_qkv, std::span<std::byte> scratch);

extern template void attention_forward<float>(const AttentionLayout&, const float*, float*, float*,
                                              std::span<std::byte>);
extern template void attention_forward<kernels::BFloat16>(const AttentionLayout&, const kernels::BFloat16*,
                                                          kernels::BFloat16*, float*, std::span<std::byte>);
extern template void attention_backward<float>(const AttentionLayout&, const float*, const float*, const float*,
                                               const float*, float*, std::span<std::byte>);
extern template void attention_backward<kernels::BFloat16>(const AttentionLayout&, const kernels::BFloat16*,
                                                           const kernels::BFloat16*, const float*,
                                                           const kernels::BFloat16*, kernels::BFloat16*,
                                                           std::span<std::byte>);

}  // namespace fivefold::ops
