#include "planner/profiles/framework_pace.h"

#include "base/check.h"

namespace fivefold {
namespace {

constexpr double kMs = 1e-3;

FrameworkPace plain_pace(Framework framework) {
  switch (framework) {
    case Framework::kFivefold:
      return {};
    case Framework::kMegatron:
      return {.elementwise_factor = 4, .layer_host_s = 0.3 * kMs, .hidden_gradients = 0.9};
    case Framework::kNanotron:
      return {.elementwise_factor = 2.6,
              .layer_host_s = 0.74 * kMs,
              .tensor_host_s = 0.5 * kMs,
              .pipeline_host_s = 0.8 * kMs,
              .hidden_gradients = 0.05};
    case Framework::kFsdp2:
      return {.elementwise_factor = 2.5, .layer_host_s = 0.1 * kMs, .hidden_gradients = 0.5};
    case Framework::kDeepspeed:
      return {.elementwise_factor = 10, .layer_host_s = 0.3 * kMs, .hidden_gradients = 0.3};
    case Framework::kHf:
      return {.elementwise_factor = 2.7, .layer_host_s = 0.1 * kMs, .hidden_gradients = 0.5};
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace

FrameworkPace framework_pace(const FrameworkRun& run) {
  FrameworkPace pace = plain_pace(run.framework);
  if (run.tuned_kernels) {
    pace.elementwise_factor = 1;
    pace.attention_factor = 2.5;
    pace.products_factor = 1.1;
    pace.hidden_tensor = 0.6;
  }
  return pace;
}

}  // namespace fivefold
