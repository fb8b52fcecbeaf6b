#include "exporters/hub_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/integer.h"
#include "base/text.h"

namespace fivefold {
namespace {

void add_method(const ExportedPlan& plan, FlagGroup& flags, ExportSheet& sheet) {
  const MethodConfig& m = plan.config.method;
  if (m.kind == MethodKind::kFull) return;
  flags.flag("use_peft");
  flags.add("lora_r", m.rank);
  // TRL takes a whole number.
  if (m.alpha != std::floor(m.alpha))
    sheet.cannot("method.alpha", "TRL takes a whole number", fmt::format("{:.0f}", m.alpha));
  flags.add("lora_alpha", static_cast<int64_t>(std::llround(m.alpha)));
  flags.add("lora_dropout", m.dropout);
  std::string targets;
  for (const std::string& target : m.targets) targets += (targets.empty() ? "" : " ") + shell_quoted(target);
  flags.words("lora_target_modules", targets);
  if (m.rank_stabilized) flags.add("use_rslora", "true");
  if (m.dora) flags.add("use_dora", "true");
  if (m.kind != MethodKind::kQlora) return;
  flags.add("load_in_4bit", "true");
  flags.add("bnb_4bit_quant_type", "nf4");
  flags.add("use_bnb_nested_quant", m.double_quantization ? "true" : "false");
}

void add_optimizer(const ExportedPlan& plan, FlagGroup& flags, ExportSheet& sheet) {
  const OptimizerConfig& o = plan.config.optimizer;
  flags.add("optim", hub_optimizer(plan.config, sheet));
  flags.add("learning_rate", o.lr);
  flags.add("weight_decay", o.weight_decay);
  if (o.kind == OptimizerKind::kAdamW) {
    flags.add("adam_beta1", o.betas[0]);
    flags.add("adam_beta2", o.betas[1]);
    flags.add("adam_epsilon", o.eps);
    sheet.says({"optimizer.betas", "optimizer.eps"});
  } else if (o.momentum != 0) {
    flags.add("optim_args", "momentum=" + exact_number(o.momentum));
    sheet.says({"optimizer.momentum"});
  }
  flags.add("max_grad_norm", o.clip);
  sheet.says({"optimizer.kind", "optimizer.lr", "optimizer.weight_decay", "optimizer.clip", "optimizer.decay"});
  if (o.decay == DecayScope::kAll) sheet.cannot("optimizer.decay", "the Trainer spares biases and norms", "matrices");
}

void add_lr(const ExportedPlan& plan, FlagGroup& flags, ExportSheet& sheet) {
  const RunConfig& config = plan.config;
  const HubSchedule schedule = hub_schedule(config);
  flags.add("lr_scheduler_type", schedule.name);
  if (!schedule.arguments.empty()) flags.add("lr_scheduler_kwargs", schedule.arguments);
  flags.add("warmup_steps", config.lr.warmup_steps);
  if (config.run.steps > 0) flags.add("max_steps", config.run.steps);
  sheet.says({"lr.schedule", "lr.warmup_steps", "run.steps", "run.tokens"});
  if (config.lr.schedule != LrScheduleKind::kConstant) sheet.says({"lr.min_ratio"});
  if (config.lr.schedule == LrScheduleKind::kWsd) sheet.says({"lr.decay_steps", "lr.decay"});
}

void add_precision(const ExportedPlan& plan, HubSharding sharding, FlagGroup& flags) {
  const PrecisionConfig& p = plan.config.precision;
  const bool adapter = plan.config.method.kind != MethodKind::kFull;
  const DType params = p.params.value_or(adapter ? DType::kBFloat16 : DType::kFloat32);
  // Weights in two bytes stay so only for an adapter's base, under DeepSpeed's own copy, or without a copy at all.
  const bool half =
      params != DType::kFloat32 && (adapter || sharding == HubSharding::kDeepspeed || p.master == MasterKind::kNone);
  flags.add("dtype", !half ? "float32" : params == DType::kFloat16 ? "float16" : "bfloat16");
  if (p.compute == ComputeKind::kBf16 || p.compute == ComputeKind::kFp8) flags.add("bf16", "true");
  if (p.compute == ComputeKind::kFp16) flags.add("fp16", "true");
  if (p.compute == ComputeKind::kFp32) flags.add("bf16", "false");
}

void add_kernels(FlagGroup& flags, SwitchSheet& switches) {
  flags.add("attn_implementation", switches.take("attention") == "unfused" ? "eager" : "flash_attention_2");
  const bool norms = switches.take("fused_norms") == "on";
  const std::string cross_entropy = switches.take("cross_entropy");
  if (norms || cross_entropy == "chunked") flags.add("use_liger_kernel", "true");
}

void add_run(const ExportedPlan& plan, FlagGroup& flags, ExportSheet& sheet) {
  const RunConfig& config = plan.config;
  flags.add("seed", config.run.seed);
  flags.add("output_dir", config.run.directory + "/" + config.run.name);
  flags.add("logging_steps", config.log.every);
  if (config.checkpoint.every > 0) {
    flags.add("save_steps", config.checkpoint.every);
    flags.add("save_total_limit", config.checkpoint.keep);
    sheet.says({"checkpoint.keep"});
  }
  sheet.says({"run.seed", "run.directory", "run.name", "log.every", "checkpoint.every"});
  if (config.data.train.empty()) {
    flags.add("dataset_name", "DATASET");
  } else {
    flags.add("dataset_name", config.data.train);
    sheet.says({"data.train"});
  }
}

}  // namespace

Status check_axes(const ExportedPlan& plan, std::initializer_list<std::string_view> has) {
  const ParallelConfig& p = plan.config.parallel;
  const std::pair<std::string_view, int> axes[] = {{"tp", p.tp}, {"pp", p.pp}, {"cp", p.cp}, {"ep", p.ep}};
  for (const auto& [name, degree] : axes)
    if (degree > 1 && std::find(has.begin(), has.end(), name) == has.end())
      return Error{"parallel." + std::string(name), fmt::format("the target has no axis {} (it is {})", name, degree),
                   name == "tp" || name == "cp"
                       ? fmt::format("use {} = 1, or export to accelerate, axolotl, torchtitan or megatron", name)
                       : fmt::format("use {} = 1, or export to torchtitan or megatron", name)};
  return Ok{};
}

HubSchedule hub_schedule(const RunConfig& config) {
  const LrConfig& lr = config.lr;
  switch (lr.schedule) {
    case LrScheduleKind::kConstant:
      return {lr.warmup_steps > 0 ? "constant_with_warmup" : "constant", ""};
    case LrScheduleKind::kCosine:
      if (lr.min_ratio == 0) return {"cosine", ""};
      return {"cosine_with_min_lr", nlohmann::json{{"min_lr_rate", lr.min_ratio}}.dump()};
    case LrScheduleKind::kLinear:
      if (lr.min_ratio == 0) return {"linear", ""};
      return {"polynomial",
              nlohmann::json{{"lr_end", rounded(config.optimizer.lr * lr.min_ratio)}, {"power", 1.0}}.dump()};
    case LrScheduleKind::kWsd:
      return {"warmup_stable_decay", nlohmann::json{{"num_decay_steps", lr.decay_steps},
                                                    {"decay_type", to_string(lr.decay)},
                                                    {"min_lr_ratio", lr.min_ratio}}
                                         .dump()};
  }
  FIVEFOLD_CHECK(false);
}

std::string hub_optimizer(const RunConfig& config, ExportSheet& sheet) {
  sheet.says({"precision.optimizer_state"});
  if (config.optimizer.kind == OptimizerKind::kSgd) return "sgd";
  if (config.precision.optimizer_state == OptimizerStateKind::k8Bit) return "adamw_8bit";
  if (config.precision.optimizer_state == OptimizerStateKind::kBf16)
    sheet.cannot("precision.optimizer_state", "moments have the weights' type", "fp32, or 8bit");
  return "adamw_torch_fused";
}

void say_precision(const ExportedPlan& plan, HubSharding sharding, ExportSheet& sheet) {
  const PrecisionConfig& p = plan.config.precision;
  const bool adapter = plan.config.method.kind != MethodKind::kFull;
  const bool half = p.compute != ComputeKind::kFp32;
  sheet.says({"precision.compute", "precision.params", "precision.grads", "precision.reduce", "precision.master"});
  if (p.compute == ComputeKind::kFp8) sheet.cannot("precision.compute", "the Trainer's arguments have no fp8", "bf16");
  if (sharding == HubSharding::kDeepspeed) return;
  const DType trained = p.params.value_or(DType::kFloat32);
  const bool kept = adapter || trained == DType::kFloat32 || p.master == MasterKind::kNone;
  if (half && !kept)
    sheet.cannot("precision.params", "the Trainer keeps fp32 weights under autocast, without another copy", "fp32");
  const DType grads = adapter || p.master == MasterKind::kFp32 ? DType::kFloat32 : trained;
  if (p.grads && *p.grads != grads)
    sheet.cannot("precision.grads", "gradients have the trained weights' type", std::string(to_string(grads)));
  // accelerate's FSDP reduces in the type of the autocast.
  const DType reduce = sharding == HubSharding::kFsdp && half
                           ? (p.compute == ComputeKind::kFp16 ? DType::kFloat16 : DType::kBFloat16)
                           : grads;
  if (p.reduce && *p.reduce != reduce)
    sheet.cannot("precision.reduce", "fixed by how the states are sharded", std::string(to_string(reduce)));
}

void say_method(const ExportedPlan& plan, ExportSheet& sheet) {
  sheet.says({"method.kind"});
  if (plan.config.method.kind == MethodKind::kFull) return;
  sheet.says({"method.rank", "method.alpha", "method.targets", "method.dropout", "method.rank_stabilized",
              "method.dora", "method.double_quantization"});
  if (!plan.config.method.adapter.empty())
    sheet.cannot("method.adapter", "TRL's script begins a new adapter", "a new adapter");
}

void say_framework(const ExportedPlan& plan, std::initializer_list<Framework> written, ExportSheet& sheet,
                   const SwitchSheet& switches) {
  switches.close(sheet);
  sheet.says({"framework.name"});
  const Framework name = plan.config.framework.name;
  if (name != Framework::kFivefold && std::find(written.begin(), written.end(), name) == written.end())
    sheet.cannot("framework.name", "the files are another framework's", std::string(to_string(*written.begin())));
}

int fsdp_level(const ExportedPlan& plan, ExportSheet& sheet) {
  sheet.says({"parallel.zero"});
  const ParallelConfig& p = plan.config.parallel;
  if (p.dp * p.cp == 1 || p.zero == 0) return 0;
  if (p.zero == 1) {
    sheet.cannot("parallel.zero", "FSDP shards gradients beside the optimizer's states", "2; or export to deepspeed");
    return 2;
  }
  return p.zero;
}

FlagGroup trl_flags(const ExportedPlan& plan, HubSharding sharding, ExportSheet& sheet, SwitchSheet& switches) {
  const RunConfig& config = plan.config;
  FlagGroup flags("TRAIN_ARGS");
  flags.add("model_name_or_path", plan.repository.empty() ? plan.model.name : plan.repository);
  sheet.says({"model.name", "model.config"});
  if (plan.repository.empty()) sheet.cannot("model.name", "is in no repository of the Hub", plan.model.name);
  if (config.model.weights == "random")
    sheet.cannot("model.weights", "the script starts from the repository's weights", "the published weights");
  add_precision(plan, sharding, flags);
  add_kernels(flags, switches);
  flags.add("per_device_train_batch_size", config.batch.micro);
  flags.add("gradient_accumulation_steps", plan.microbatches());
  flags.add("max_length", config.batch.sequence);
  flags.add("packing", "true");
  flags.add("packing_strategy", config.batch.packing == Packing::kDocuments ? "bfd" : "wrapped");
  sheet.says({"batch.micro", "batch.global", "batch.sequence", "batch.packing", "parallel.dp", "recompute.kind"});
  flags.add("gradient_checkpointing", config.recompute.kind == RecomputeKind::kNone ? "false" : "true");
  if (config.recompute.kind == RecomputeKind::kSelective)
    sheet.cannot("recompute.kind", "the Trainer recomputes whole layers or nothing", "full");
  if (config.recompute.kind == RecomputeKind::kFull && config.recompute.every > 1)
    sheet.cannot("recompute.every", "each layer is a segment of its own", "1");
  add_optimizer(plan, flags, sheet);
  add_lr(plan, flags, sheet);
  add_run(plan, flags, sheet);
  add_method(plan, flags, sheet);
  say_method(plan, sheet);
  return flags;
}

std::string trl_script(const ExportedPlan& plan, ForeignTarget target, const std::string& launch,
                       const FlagGroup& flags) {
  std::string text = fmt::format("#!/usr/bin/env bash\n# {} on {} GPUs, for {}.\nset -euo pipefail\n\n",
                                 plan.model.name, plan.world(), target_release(target));
  text += flags.array();
  return text + fmt::format("\n{} \\\n    \"${{{}[@]}}\" \"$@\"\n", launch, flags.name());
}

}  // namespace fivefold
