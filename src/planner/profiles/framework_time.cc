#include "planner/profiles/framework_time.h"

#include <algorithm>

#include "base/integer.h"
#include "planner/cost.h"
#include "planner/link_times.h"
#include "planner/scope.h"
#include "spec/adapter.h"
#include "spec/network.h"

namespace fivefold {
namespace {

constexpr double kMs = 1e-3;
// Of the rate between nodes that a collective reaches alone, what it has in training, beside computation and the
// collectives of other groups.
constexpr double kNetworkInTraining = 0.5;
// Tuned kernels: of tensor parallelism's collectives what goes beside the products; attention and products over those
// of other stacks, up to a share of the data sheet's rate.
constexpr double kHiddenTensorShare = 0.6, kTunedAttention = 2.5, kTunedProducts = 1.1, kMostShare = 0.85;
// Of the rate that fp8 products have over bf16 ones on the data sheet, what training reaches.
constexpr double kFp8Share = 0.75;

// The replica's step; ZeRO-3 with its gathers, below it data parallelism is added afterwards.
RunConfig replayed_config(const FrameworkRun& run) {
  RunConfig config;
  ParallelConfig& parallel = config.parallel;
  parallel.dp = run.zero < 3 ? 1 : static_cast<int>(run.dp);
  parallel.zero = run.zero < 3 ? 0 : 3;
  parallel.tp = static_cast<int>(run.tp);
  parallel.sp = run.sp && run.tp > 1;
  parallel.pp = static_cast<int>(run.pp);
  parallel.vpp = static_cast<int>(run.vpp);
  parallel.cp = static_cast<int>(run.cp);
  if (run.vpp > 1) parallel.schedule = ScheduleKind::kInterleaved;
  config.batch = {.global = run.micro * parallel.dp * run.microbatches,
                  .micro = run.micro,
                  .sequence = run.sequence,
                  .packing = {},
                  .loss_chunk = run.micro * run.sequence};
  config.precision.compute = run.compute == DType::kFloat16   ? ComputeKind::kFp16
                             : run.compute == DType::kFloat32 ? ComputeKind::kFp32
                                                              : ComputeKind::kBf16;
  config.precision.grads = DType::kFloat32;
  if (run.checkpointing == Checkpointing::kFull) config.recompute.kind = RecomputeKind::kFull;
  if (!run.trains_adapter) return config;
  const FrozenWeights frozen = run.frozen;
  config.method.kind =
      frozen == FrozenWeights::kNone || frozen == FrozenWeights::kBf16 ? MethodKind::kLora : MethodKind::kQlora;
  config.method.rank = std::max<int64_t>(run.rank, 1);
  config.method.targets = run.targets.empty() ? std::vector<std::string>{"q_proj", "v_proj"} : run.targets;
  return config;
}

HardwareSpec paced(HardwareSpec hardware, const FrameworkRun& run) {
  const FrameworkPace pace = framework_pace(run.framework);
  DeviceSpec& device = hardware.device;
  device.elementwise_factor.value = pace.elementwise_factor;
  device.layer_host_s.value =
      pace.layer_host_s + (run.tp > 1 ? pace.tensor_host_s : 0) + (run.pp > 1 ? pace.pipeline_host_s : 0);
  if (device.link_share.known()) hardware.node_link.reached_share = device.link_share;
  hardware.network.reached_share.value =
      kNetworkInTraining *
      (hardware.network.reached_share.known() ? hardware.network.reached_share.value : kLinkOfBandwidth);
  if (run.tuned_kernels && device.gemm_share.known()) {
    device.elementwise_factor.value = 1;
    device.attention_share.value = std::min(kMostShare, kTunedAttention * device.attention_share.value);
    device.gemm_share.value = std::min(kMostShare, kTunedProducts * device.gemm_share.value);
    if (hardware.node_link.reached_share.known()) hardware.node_link.reached_share.value /= 1 - kHiddenTensorShare;
  }
  if (!run.fp8 || !device.peak_flops_per_s.fp8.known() || !device.gemm_share.known()) return hardware;
  // Products alone are in fp8; attention stays as it is.
  const double ratio = kFp8Share * device.peak_flops_per_s.fp8.value / device.peak_flops_per_s.bf16.value;
  device.peak_flops_per_s.bf16.value *= ratio;
  device.attention_share.value /= ratio;
  return hardware;
}

// Reduce-scatter of the gradients and gather of the weights, or an all-reduce, of what a rank holds.
double exchange_seconds(const FrameworkRun& run, const Inventory& inventory, const HardwareSpec& hardware) {
  if (run.zero >= 3 || run.dp == 1) return 0;
  Degrees degrees;
  degrees.dp = static_cast<int>(run.dp);
  degrees.tp = static_cast<int>(run.tp);
  degrees.pp = static_cast<int>(run.pp);
  degrees.cp = static_cast<int>(run.cp);
  degrees.shard_size = static_cast<int>(run.dp * run.cp);
  const LinkTimes links(hardware, RankGrid::create(degrees).value());
  double elements = 0;
  for (const Unit& unit : inventory.units)
    for (const ParameterEntry& entry : unit.parameters)
      if (entry.trained())
        elements += static_cast<double>(entry.numel()) /
                    (entry.split == Split::kReplicated ? 1.0 : static_cast<double>(run.tp));
  elements /= static_cast<double>(run.pp);
  const double gradients = elements * static_cast<double>(dtype_bytes(run.gradient_dtype));
  const double back = run.zero >= 1 ? 2 * elements : gradients;
  const double seconds = links(CollectiveKind::kReduceScatter, GroupKind::kDp, gradients).seconds +
                         links(CollectiveKind::kAllGather, GroupKind::kDp, back).seconds;
  return seconds * (1 - framework_pace(run.framework).hidden_gradients);
}

}  // namespace

FrameworkPace framework_pace(Framework framework) {
  switch (framework) {
    case Framework::kFivefold:
      break;
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

Result<FrameworkTime> framework_time(const FrameworkRun& run, const HardwareSpec& hardware) {
  if (run.ep > 1) return Error{"parallel.ep", "the time of expert parallelism is not predicted", ""};
  const RunConfig config = replayed_config(run);
  ModelSpec model = with_method(run.model, config.method);
  // Every stage has its part of the output matrix; the last one's is what the others wait for.
  if (run.vocabulary_stages != VocabularyStages::kLast) model.vocab = div_ceil(model.vocab, run.pp);
  if (const std::vector<Error> outside = planner_scope(model, config); !outside.empty()) return outside.front();
  FIVEFOLD_ASSIGN(const ResolvedConfig resolved, resolve(config, model));
  const Inventory inventory = build_inventory(model);
  FrameworkTime time;
  const HardwareSpec in_training = paced(hardware, run);
  time.step = predict_cost(model, inventory, resolved, in_training);
  time.exchange_s = exchange_seconds(run, inventory, in_training);
  const auto of_replica = static_cast<double>(run.micro * run.microbatches * run.sequence);
  time.tokens_per_s =
      of_replica / (time.step.seconds + time.exchange_s) / static_cast<double>(run.tp * run.pp * run.cp);
  return time;
}

}  // namespace fivefold
