#include "engine/ops/attention.h"

#include <ATen/Context.h>

#include <algorithm>

#include "base/check.h"
#include "engine/ops/attention_worker.h"

namespace fivefold::ops {

AttentionShape AttentionLayout::shape() const {
  FIVEFOLD_CHECK(!cu_seqlens.empty());
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    longest = std::max<int64_t>(longest, cu_seqlens[i + 1] - cu_seqlens[i]);
  }
  return {.tokens = cu_seqlens.back(),
          .max_document_tokens = longest,
          .num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim};
}

int64_t attention_forward_scratch_bytes(const AttentionShape& shape, int num_threads) {
  return num_threads * attention_forward_scratch_bytes_per_thread(shape);
}

int64_t attention_backward_scratch_bytes(const AttentionShape& shape, int num_threads) {
  return num_threads * attention_backward_scratch_bytes_per_thread(shape);
}

bool multiplies_bf16() {
#ifdef __x86_64__
  static const bool in_hardware = __builtin_cpu_supports("avx512bf16");
  return in_hardware && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

}  // namespace fivefold::ops
