// accelerate's configuration file, with TRL's sft script under it.
#include <fmt/format.h>

#include "base/integer.h"
#include "exporters/hub_export.h"

namespace fivefold {
namespace {

std::string fsdp_section(int level) {
  return fmt::format(
      "fsdp_config:\n  fsdp_activation_checkpointing: false\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_offload_params: false\n  fsdp_reshard_after_forward: {}\n"
      "  fsdp_state_dict_type: SHARDED_STATE_DICT\n  fsdp_version: 2\n",
      level == 3);
}

// Degrees of the device mesh, where there is more than one axis.
std::string mesh_section(const ExportedPlan& plan, ExportSheet& sheet) {
  const ParallelConfig& p = plan.config.parallel;
  const int64_t shard = p.shard_size > 0 ? p.shard_size : int64_t{p.dp} * p.cp;
  const bool hybrid = shard < int64_t{p.dp} * p.cp;
  sheet.says({"parallel.tp", "parallel.cp", "parallel.cp_kind", "parallel.shard_size"});
  if (p.tp == 1 && p.cp == 1 && !hybrid) return "";
  // accelerate shards over dp_shard x cp.
  if (shard % p.cp != 0)
    sheet.cannot("parallel.shard_size", "a shard group holds whole groups of cp", std::to_string(p.dp * p.cp));
  const int64_t dp_shard = shard % p.cp == 0 ? div_exact(shard, int64_t{p.cp}) : p.dp;
  if (p.cp > 1 && p.cp_kind == CpKind::kUlysses)
    sheet.cannot("parallel.cp_kind", "accelerate has Ulysses only with DeepSpeed", "all_gather");
  return fmt::format(
      "parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n  parallelism_config_dp_shard_size: {}\n"
      "  parallelism_config_tp_size: {}\n  parallelism_config_cp_size: {}\n"
      "  parallelism_config_cp_comm_strategy: {}\n",
      div_exact(int64_t{p.dp}, dp_shard), dp_shard, p.tp, p.cp, p.cp_kind == CpKind::kRing ? "alltoall" : "allgather");
}

}  // namespace

Result<Exported> export_accelerate(const ExportedPlan& plan) {
  FIVEFOLD_TRY(check_axes(plan, {"tp", "cp"}));
  ExportSheet sheet(plan.config);
  SwitchSheet switches(plan.config);
  const ParallelConfig& p = plan.config.parallel;
  int level = fsdp_level(plan, sheet);
  // Other axes than dp come with FSDP 2 only.
  if (level == 0 && (p.tp > 1 || p.cp > 1)) {
    level = 2;
    sheet.cannot("parallel.zero", "accelerate has tp and cp under FSDP 2 only", "2");
  }
  if (p.sp) sheet.cannot("parallel.sp", "transformers' plans keep norms whole", "false");
  sheet.says({"parallel.sp"});
  const HubSharding sharding = level > 0 ? HubSharding::kFsdp : HubSharding::kNone;
  const FlagGroup flags = trl_flags(plan, sharding, sheet, switches);
  say_precision(plan, sharding, sheet);
  say_framework(plan, {Framework::kHf}, sheet, switches);
  const PrecisionConfig& precision = plan.config.precision;
  const std::string mesh = level > 0 ? mesh_section(plan, sheet) : "";
  sheet.says({"parallel.shard_size"});
  std::string yaml = fmt::format("# {}\ncompute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: {}\n",
                                 target_release(ForeignTarget::kAccelerate),
                                 level > 0          ? "FSDP"
                                 : plan.world() > 1 ? "MULTI_GPU"
                                                    : "'NO'");
  yaml += "downcast_bf16: 'no'\nenable_cpu_affinity: false\n";
  if (level > 0) yaml += fsdp_section(level);
  yaml += fmt::format(
      "machine_rank: 0\nmain_training_function: main\nmixed_precision: {}\nnum_machines: {}\nnum_processes: {}\n",
      precision.compute == ComputeKind::kFp32   ? "'no'"
      : precision.compute == ComputeKind::kFp16 ? "fp16"
                                                : "bf16",
      plan.machines(), plan.world());
  yaml += mesh + "rdzv_backend: static\nsame_network: true\nuse_cpu: false\n";
  std::string launch = "accelerate launch --config_file accelerate.yaml";
  if (plan.machines() > 1)
    launch +=
        " --machine_rank \"${NODE_RANK:?number of this machine}\" --main_process_ip \"${MASTER_ADDR:?address of "
        "machine 0}\""
        " --main_process_port \"${MASTER_PORT:-29500}\"";
  return Exported{
      ForeignTarget::kAccelerate,
      {{"run_accelerate.sh", trl_script(plan, ForeignTarget::kAccelerate, launch + " -m trl.scripts.sft", flags)},
       {"accelerate.yaml", yaml}},
      sheet.notes()};
}

}  // namespace fivefold
