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
                                     .attention_factor = 1.01,
                                     .layer_host_s = 0.2 * kMs,
                                     .network_share = 0.591,
                                     .loss_passes = 2.92,
                                     .hidden_gradients = 0.316,
                                     .hidden_tensor = 0.0811,
                                     .hidden_experts = 0.95,
                                     .reduced_messages = 12};
constexpr FrameworkPace kNanotron = {.elementwise_factor = 1.53,
                                     .layer_host_s = 0.959 * kMs,
                                     .tensor_host_s = 0.45 * kMs,
                                     .crossing_host_s = 1.12 * kMs,
                                     .crossing_tensor_host_s = 0.81 * kMs,
                                     .backward_host = 1.99,
                                     .network_share = 0.82,
                                     .exchange_factor = 1.27,
                                     .loss_passes = 3.98,
                                     .hidden_beside_backward = 0.962,
                                     .sharded_messages = 1.3,
                                     .reduced_messages = 22.1};
constexpr FrameworkPace kCompiledFsdp = {.products_factor = 1.12,
                                         .attention_factor = 0.942,
                                         .fp8_share = 0.665,
                                         .rowwise_share = 0.759,
                                         .layer_host_s = 0.2 * kMs,
                                         .network_share = 0.689,
                                         .loss_passes = 0.3,
                                         .hidden_gathers = 0.437,
                                         .async_tensor = 0.759,
                                         .hidden_tensor = 0.165};
constexpr FrameworkPace kEagerFsdp = {.elementwise_factor = 1.61,
                                      .products_factor = 1.24,
                                      .attention_factor = 0.73,
                                      .fp8_share = 0.702,
                                      .layer_host_s = 0.2 * kMs,
                                      .network_share = 0.855,
                                      .exchange_factor = 1.46,
                                      .loss_passes = 2.42,
                                      .hidden_gathers = 0.887};
constexpr FrameworkPace kDeepspeed = {.elementwise_factor = 6.87,
                                      .products_factor = 1.1,
                                      .attention_factor = 0.594,
                                      .layer_host_s = 0.3 * kMs,
                                      .network_share = 0.21,
                                      .loss_passes = 1.15,
                                      .hidden_gathers = 0.0121,
                                      .sharded_messages = 40};
constexpr FrameworkPace kTransformers = {.elementwise_factor = 3.56,
                                         .unfused_factor = 1.44,
                                         .products_factor = 1.1,
                                         .attention_factor = 2.18,
                                         .layer_host_s = 0.63 * kMs,
                                         .adapter_host_s = 0.486 * kMs,
                                         .quantised_host_s = 0.78 * kMs,
                                         .backward_host = 2.45,
                                         .exchange_factor = 1.66,
                                         .loss_passes = 0.3,
                                         .hidden_gathers = 0.287,
                                         .dequantised_bytes = 3.16};
constexpr FrameworkPace kTuned = {.elementwise_factor = 1.83,
                                  .products_factor = 1.17,
                                  .attention_factor = 1.26,
                                  .fp8_share = 1,
                                  .fp4_share = 0.88,
                                  .layer_host_s = 0.1 * kMs,
                                  .network_share = 1.2,
                                  .loss_passes = 4,
                                  .hidden_gradients = 0.817,
                                  .hidden_gathers = 0.75,
                                  .hidden_tensor = 0.828,
                                  .sharded_messages = 3.85};

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
