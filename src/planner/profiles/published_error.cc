#include "planner/profiles/published_error.h"

#include <algorithm>

#include "base/check.h"

namespace fivefold {

PublishedError published_error(const FrameworkRun& run) {
  const bool experts =
      std::ranges::any_of(run.model.layers, [](const LayerSpec& l) { return l.mlp.kind == MlpKind::kMoe; });
  switch (run.framework) {
    case Framework::kMegatron:
      return {.memory = experts ? 0.06 : 0.04,
              .memory_source = experts ? "megatron_lm_functional_tests: experts" : "megatron_lm_functional_tests",
              .throughput = 0.36,
              .throughput_source = "nvidia_megatron_bridge_perf"};
    case Framework::kNanotron:
      return {.memory = 0.17,
              .memory_source = "hf_ultrascale_playbook",
              .throughput = 0.16,
              .throughput_source = "hf_ultrascale_playbook: MFU of 10 % or more"};
    case Framework::kFsdp2:
      return {
          .memory = 0.14, .memory_source = "torchtune_torchao", .throughput = 0.25, .throughput_source = "torchtitan"};
    case Framework::kDeepspeed:
      return {.memory = 0.06,
              .memory_source = "bloom_tr11_prequel_a100",
              .throughput = 0.14,
              .throughput_source = "bloom_tr11_prequel_a100"};
    case Framework::kHf:
      return {.memory = 0.11,
              .memory_source = "qwen_finetune_a100",
              .throughput = 0.14,
              .throughput_source = "fms_acceleration_finetune"};
    case Framework::kFivefold:
      break;
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace fivefold
