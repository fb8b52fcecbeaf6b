// DeepSpeed's JSON, with TRL's sft script under it.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "exporters/hub_export.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

Json precision_section(const ExportedPlan& plan, ExportSheet& sheet, Json& root) {
  const PrecisionConfig& p = plan.config.precision;
  const bool adapter = plan.config.method.kind != MethodKind::kFull;
  if (p.compute == ComputeKind::kFp16) {
    root["fp16"] = {{"enabled", true},
                    {"loss_scale", 0},
                    {"initial_scale_power", std::llround(std::log2(p.loss_scale))},
                    {"loss_scale_window", p.loss_scale_growth_every}};
    sheet.says({"precision.loss_scale", "precision.loss_scale_growth_every"});
    if (std::exp2(std::round(std::log2(p.loss_scale))) != p.loss_scale)
      sheet.cannot("precision.loss_scale", "DeepSpeed starts from a power of two");
  } else {
    root["bf16"] = {{"enabled", p.compute != ComputeKind::kFp32}};
  }
  const bool half = p.compute != ComputeKind::kFp32;
  const DType weights = !half ? DType::kFloat32 : p.compute == ComputeKind::kFp16 ? DType::kFloat16 : DType::kBFloat16;
  if (p.params && *p.params != weights && !adapter)
    sheet.cannot("precision.params", "DeepSpeed keeps weights in the type it computes in",
                 std::string(to_string(weights)));
  if (p.master == MasterKind::kNone)
    sheet.cannot("precision.master", "an fp32 copy of the weights takes the updates", "fp32");
  const auto name = [](DType type) {
    return type == DType::kFloat32 ? "fp32" : type == DType::kFloat16 ? "fp16" : "bf16";
  };
  if (p.grads) root["data_types"] = {{"grad_accum_dtype", name(*p.grads)}};
  if (p.reduce) root["communication_data_type"] = name(*p.reduce);
  return root;
}

void add_zero(const ExportedPlan& plan, ExportSheet& sheet, SwitchSheet& switches, Json& root) {
  const ParallelConfig& p = plan.config.parallel;
  Json zero = {{"stage", p.zero}, {"overlap_comm", true}, {"contiguous_gradients", true}};
  sheet.says({"parallel.zero", "parallel.shard_size"});
  if (p.zero > 0 && p.shard_size > 0 && p.shard_size < p.dp)
    sheet.cannot("parallel.shard_size", "DeepSpeed 0.19 has no sharding over a part of the ranks any more (MiCS)", "0");
  if (p.zero == 3) zero["stage3_gather_16bit_weights_on_model_save"] = true;
  if (switches.take("optimizer_on_host") == "on") zero["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
  if (switches.take("weights_on_host") == "on") zero["offload_param"] = {{"device", "cpu"}, {"pin_memory", true}};
  root["zero_optimization"] = zero;
}

void add_optimizer(const ExportedPlan& plan, Json& root) {
  const OptimizerConfig& o = plan.config.optimizer;
  // bitsandbytes' optimizers are the Trainer's own.
  if (o.kind == OptimizerKind::kAdamW && plan.config.precision.optimizer_state != OptimizerStateKind::k8Bit) {
    root["optimizer"] = {
        {"type", "AdamW"},
        {"params",
         {{"lr", o.lr}, {"betas", {o.betas[0], o.betas[1]}}, {"eps", o.eps}, {"weight_decay", o.weight_decay}}}};
    return;
  }
  root["zero_allow_untested_optimizer"] = true;
}

}  // namespace

Result<Exported> export_deepspeed(const ExportedPlan& plan) {
  FIVEFOLD_TRY(check_axes(plan, {}));
  ExportSheet sheet(plan.config);
  SwitchSheet switches(plan.config);
  switches.take("deepspeed");
  FlagGroup flags = trl_flags(plan, HubSharding::kDeepspeed, sheet, switches);
  flags.add("deepspeed", "ds_config.json");
  say_precision(plan, HubSharding::kDeepspeed, sheet);
  Json root = {{"train_batch_size", plan.config.batch.global},
               {"train_micro_batch_size_per_gpu", plan.config.batch.micro},
               {"gradient_accumulation_steps", plan.microbatches()},
               {"gradient_clipping", plan.config.optimizer.clip}};
  precision_section(plan, sheet, root);
  add_zero(plan, sheet, switches, root);
  add_optimizer(plan, root);
  say_framework(plan, {Framework::kHf, Framework::kDeepspeed}, sheet, switches);
  const std::string launch = fmt::format("deepspeed --num_nodes {} --num_gpus {} --module trl.scripts.sft",
                                         plan.machines(), plan.ranks_on_machine());
  return Exported{ForeignTarget::kDeepspeed,
                  {{"run_deepspeed.sh", trl_script(plan, ForeignTarget::kDeepspeed, launch, flags)},
                   {"ds_config.json", root.dump(2) + "\n"}},
                  sheet.notes()};
}

}  // namespace fivefold
