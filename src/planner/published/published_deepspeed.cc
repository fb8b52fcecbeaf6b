// Rows of Megatron-DeepSpeed.
#include <algorithm>

#include "base/integer.h"
#include "planner/published/published_frameworks.h"

namespace fivefold {

Status read_deepspeed_row(const PublishedRun& row, FrameworkRun& run) {
  const auto says = [&](const char* column, const char* part) {
    return row.text(column).find(part) != std::string::npos;
  };
  if (row.source() == "bloom_tr11_prequel_a100") {
    // BLOOM's layers: LayerNorm and biases, GELU; the vocabulary is padded to 128 x t. Its attention was Megatron's
    // own.
    run.model.vocab = round_up(250680, 128 * run.tp);
    run.model.final_norm = {.kind = NormKind::kLayer, .bias = true};
    for (LayerSpec& layer : run.model.layers) {
      layer.norm = run.model.final_norm;
      layer.mixer.qkv_bias = layer.mixer.out_bias = true;
      layer.mlp.bias = true;
    }
    run.attention.set(AttentionKernel::kUnfused);
    run.microbatches = std::max<int64_t>(1, run.microbatches);
  }
  if (says("precision", "BF16_Optimizer")) run.sharding.bf16_optimizer.set(true);
  if (says("mem_kind", "nvidia-smi")) run.sharding.counts_process.set(true);
  return Ok{};
}

}  // namespace fivefold
