#include "planner/profiles/framework_pace.h"

#include "base/check.h"

namespace fivefold {
namespace {

constexpr double kMs = 1e-3;

// Each fitted to one half of the published runs of its framework (docs/accuracy.md#throughput): megatron's of SimuMax,
// the vocabulary-parallel pipelines and Megatron-LM's papers, nanotron's of the playbook, compiled FSDP's of
// torchtitan, torchao and torchtune, eager FSDP's of Composer, DeepSpeed's of BLOOM, transformers' of fms and Qwen,
// tuned kernels' of MLPerf, NeMo and Megatron-Bridge.
constexpr FrameworkPace kMegatron = {.elementwise_factor = 2.33,
                                     .attention_factor = 1.05,
                                     .layer_host_s = 0.2 * kMs,
                                     .network_share = 0.593,
                                     .loss_passes = 2.92,
                                     .hidden_gradients = 0.306,
                                     .hidden_tensor = 0.105,
                                     .hidden_experts = 0.807,
                                     .sharded_messages = 0.0191,
                                     .reduced_messages = 11};
constexpr FrameworkPace kNanotron = {.elementwise_factor = 1.44,
                                     .layer_host_s = 0.959 * kMs,
                                     .tensor_host_s = 0.441 * kMs,
                                     .crossing_host_s = 1.04 * kMs,
                                     .crossing_tensor_host_s = 0.825 * kMs,
                                     .backward_host = 1.99,
                                     .network_share = 0.685,
                                     .exchange_factor = 1.23,
                                     .loss_passes = 3.35,
                                     .hidden_beside_backward = 0.855,
                                     .sharded_messages = 1.3,
                                     .reduced_messages = 21.9};
constexpr FrameworkPace kCompiledFsdp = {.products_factor = 1.12,
                                         .attention_factor = 0.942,
                                         .fp8_share = 0.665,
                                         .rowwise_share = 0.759,
                                         .layer_host_s = 0.2 * kMs,
                                         .network_share = 0.676,
                                         .loss_passes = 0.3,
                                         .hidden_gathers = 0.437,
                                         .async_tensor = 0.757,
                                         .hidden_tensor = 0.165};
constexpr FrameworkPace kEagerFsdp = {.elementwise_factor = 2.05,
                                      .products_factor = 1.28,
                                      .attention_factor = 0.84,
                                      .fp8_share = 0.78,
                                      .layer_host_s = 0.2 * kMs,
                                      .network_share = 0.489,
                                      .loss_passes = 2.23,
                                      .hidden_gathers = 0.835};
constexpr FrameworkPace kDeepspeed = {.elementwise_factor = 6.87,
                                      .products_factor = 1.1,
                                      .attention_factor = 0.617,
                                      .layer_host_s = 0.3 * kMs,
                                      .network_share = 0.21,
                                      .loss_passes = 1.15,
                                      .hidden_gathers = 0.0121,
                                      .sharded_messages = 40};
constexpr FrameworkPace kTransformers = {.elementwise_factor = 3.79,
                                         .products_factor = 1.1,
                                         .attention_factor = 2.18,
                                         .layer_host_s = 1.09 * kMs,
                                         .backward_host = 2.87,
                                         .loss_passes = 1.14,
                                         .hidden_gathers = 0.1,
                                         .dequantised_bytes = 4.6,
                                         .sharded_messages = 40};
constexpr FrameworkPace kTuned = {.elementwise_factor = 2.68,
                                  .products_factor = 1.19,
                                  .attention_factor = 1.55,
                                  .fp8_share = 1,
                                  .fp4_share = 0.904,
                                  .layer_host_s = 0.1 * kMs,
                                  .network_share = 1.2,
                                  .loss_passes = 6,
                                  .hidden_gradients = 0.888,
                                  .hidden_gathers = 0.72,
                                  .hidden_tensor = 0.655,
                                  .sharded_messages = 2.4};

}  // namespace

FrameworkPace framework_pace(const FrameworkRun& run) {
  switch (run.framework) {
    case Framework::kFivefold:
      return {};
    case Framework::kMegatron:
      return run.tuned_kernels ? kTuned : kMegatron;
    case Framework::kNanotron:
      return kNanotron;
    case Framework::kFsdp2:
      return run.sharding.compiled ? kCompiledFsdp : kEagerFsdp;
    case Framework::kDeepspeed:
      return kDeepspeed;
    case Framework::kHf:
      return kTransformers;
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace fivefold
