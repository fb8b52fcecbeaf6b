#include "planner/profiles/framework_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/integer.h"
#include "planner/profiles/framework_switches.h"

namespace fivefold {
namespace {

// What the framework cannot be told, or the profile does not know.
std::optional<Error> unknown_setting(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  const auto name = to_string(config.framework.name);
  const bool plain =
      parallel.schedule == ScheduleKind::k1F1B || parallel.schedule == ScheduleKind::kInterleaved || parallel.pp == 1;
  if (!plain)
    return Error{"parallel.schedule", fmt::format("{} is not planned under {}", to_string(parallel.schedule), name),
                 "use 1f1b, or interleaved with vpp chunks a rank"};
  if (config.recompute.kind == RecomputeKind::kFull && config.recompute.every > 1)
    return Error{"recompute.every",
                 fmt::format("segments of {} layers are not planned under {}", config.recompute.every, name),
                 "use every = 1"};
  if (parallel.stages.cut == StageCut::kBalanced)
    return Error{"parallel.stages", fmt::format("{} cuts evenly, or as listed", name), "list each stage's layers"};
  if (config.optimizer.kind != OptimizerKind::kAdamW)
    return Error{"optimizer.kind", fmt::format("the profile of {} knows Adam only", name), "use adamw"};
  return std::nullopt;
}

void read_layout(const ModelSpec& model, const RunConfig& config, FrameworkRun& run) {
  const ParallelConfig& parallel = config.parallel;
  run.dp = parallel.dp;
  run.tp = parallel.tp;
  run.sp = parallel.sp;
  run.pp = parallel.pp;
  run.vpp = parallel.vpp;
  run.cp = parallel.cp;
  run.ep = parallel.ep;
  run.zero = parallel.zero;
  if (parallel.reduce == ReduceWhen::kStep) run.reduces_once.set(true);
  run.shard_size = parallel.shard_size == parallel.dp * parallel.cp ? 0 : parallel.shard_size;
  const bool experts =
      std::ranges::any_of(model.layers, [](const LayerSpec& l) { return l.mlp.kind == MlpKind::kMoe; });
  if (experts) run.expert_tp.set(parallel.etp);
  if (parallel.stages.cut == StageCut::kListed && parallel.pp > 1) run.stage_layers = parallel.stages.layers;
}

void read_precision(const RunConfig& config, FrameworkRun& run) {
  const PrecisionConfig& precision = config.precision;
  run.compute = precision.compute == ComputeKind::kFp16   ? DType::kFloat16
                : precision.compute == ComputeKind::kFp32 ? DType::kFloat32
                                                          : DType::kBFloat16;
  run.fp8 = precision.compute == ComputeKind::kFp8;
  if (precision.grads) run.gradient_dtype.set(*precision.grads);
  if (precision.params) run.weight_dtype.set(*precision.params);
  if (precision.optimizer_state != OptimizerStateKind::kFp32)
    run.optimizer_state_bits.set(precision.optimizer_state == OptimizerStateKind::kBf16 ? 16 : 8);
}

// FSDP and transformers train fp32 weights under mixed precision, Megatron bf16 ones with an fp32 copy.
void set_defaults(FrameworkRun& run) {
  switch (run.framework) {
    case Framework::kFsdp2:
      run.weight_dtype.value = DType::kFloat32;
      run.cross_entropy.value = CrossEntropyKernel::kCompiled;
      break;
    case Framework::kHf:
      run.weight_dtype.value = run.zero == 0 && run.trains_adapter ? DType::kBFloat16 : DType::kFloat32;
      run.cross_entropy.value = CrossEntropyKernel::kEager;
      break;
    case Framework::kMegatron:
      run.cross_entropy.value = CrossEntropyKernel::kTransformerEngine;
      break;
    default:
      break;
  }
}

void read_method(const ModelSpec& model, const RunConfig& config, FrameworkRun& run) {
  const MethodConfig& method = config.method;
  run.trains_adapter = method.kind != MethodKind::kFull;
  if (!run.trains_adapter) return;
  run.rank = method.rank;
  run.targets = method.targets == std::vector<std::string>{"all-linear"} ? all_linear_targets(model) : method.targets;
  run.frozen.set(method.kind == MethodKind::kLora ? FrozenWeights::kBf16
                 : method.double_quantization     ? FrozenWeights::kNf4Double
                                                  : FrozenWeights::kNf4);
  run.hf.dora.set(method.dora);
  run.hf.adapter_dropout.set(method.dropout > 0);
}

Checkpointing checkpointing(const RunConfig& config) {
  switch (config.recompute.kind) {
    case RecomputeKind::kNone:
      return Checkpointing::kNone;
    case RecomputeKind::kFull:
      return Checkpointing::kFull;
    case RecomputeKind::kSelective:
      return config.framework.name == Framework::kFsdp2 ? Checkpointing::kPerOperation : Checkpointing::kCoreAttention;
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace

std::vector<std::string> all_linear_targets(const ModelSpec& model) {
  const bool gated =
      std::ranges::any_of(model.layers, [](const LayerSpec& l) { return l.mlp.kind != MlpKind::kPlain; });
  if (gated) return {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  return {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"};
}

Result<FrameworkRun> framework_run(const ModelSpec& model, const RunConfig& config, const HardwareSpec& hardware) {
  if (std::optional<Error> error = unknown_setting(config)) return *std::move(error);
  FrameworkRun run;
  run.framework = config.framework.name;
  run.model = model;
  run.model.adapter.reset();
  run.gpu = hardware.gpu.empty() ? hardware.name : hardware.gpu;
  run.capacity_bytes =
      config.limits.memory > 0 ? config.limits.memory : static_cast<int64_t>(hardware.device.memory_bytes.value);
  read_layout(model, config, run);
  read_method(model, config, run);
  read_precision(config, run);
  run.checkpointing = checkpointing(config);
  run.sequence = config.batch.sequence;
  run.micro = config.batch.micro;
  const int64_t a_round = run.micro * run.dp, global = config.batch.global > 0 ? config.batch.global : a_round;
  if (global % a_round != 0)
    return Error{"batch.global", fmt::format("{} sequences are no multiple of micro x dp = {}", global, a_round),
                 fmt::format("use {}", std::max(a_round, div_floor(global, a_round) * a_round))};
  run.microbatches = div_exact(global, a_round);
  set_defaults(run);
  for (const std::string& setting : config.framework.switches) FIVEFOLD_TRY(set_switch(run, setting));
  if (const std::vector<Error> errors = framework_refusals(run); !errors.empty()) return errors.front();
  return run;
}

RunConfig framework_run_config(const FrameworkRun& run, const RunConfig& base) {
  RunConfig config = base;
  config.framework.name = run.framework;
  config.framework.switches = switch_settings(run);
  ParallelConfig& parallel = config.parallel;
  parallel.dp = static_cast<int>(run.dp);
  parallel.tp = static_cast<int>(run.tp);
  parallel.sp = run.sp;
  parallel.pp = static_cast<int>(run.pp);
  parallel.vpp = static_cast<int>(run.vpp);
  parallel.schedule = run.vpp > 1 ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B;
  parallel.cp = static_cast<int>(run.cp);
  parallel.ep = static_cast<int>(run.ep);
  parallel.etp = static_cast<int>(run.expert_tp.value);
  parallel.zero = run.zero;
  parallel.shard_size = static_cast<int>(run.shard_size);
  parallel.reduce = run.reduces_once ? ReduceWhen::kStep : ReduceWhen::kMicrobatch;
  parallel.stages = {};
  if (!run.stage_layers.empty()) parallel.stages = {.cut = StageCut::kListed, .layers = run.stage_layers};
  config.batch.micro = run.micro;
  config.batch.sequence = run.sequence;
  config.batch.global = run.micro * run.dp * run.microbatches;
  if (run.fp8) config.precision.compute = ComputeKind::kFp8;
  config.recompute = {};
  if (run.checkpointing == Checkpointing::kFull) config.recompute.kind = RecomputeKind::kFull;
  if (run.checkpointing == Checkpointing::kCoreAttention || run.checkpointing == Checkpointing::kPerOperation)
    config.recompute.kind = RecomputeKind::kSelective;
  return config;
}

}  // namespace fivefold
