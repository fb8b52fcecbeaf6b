#include "engine/ops/attention.h"

#include <ATen/Context.h>

#include <algorithm>

#include "engine/ops/attention_worker.h"

namespace fivefold::ops {

AttentionShape AttentionLayout::shape() const {
  int64_t longest = 0;
  for (const AttentionSegment& segment : segments) longest = std::max(longest, segment.kv_len);
  return {.max_segment_keys = longest, .head_dim = head_dim};
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
