// TRL's sft script under torchrun, with FSDP where states are sharded.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "exporters/hub_export.h"

namespace fivefold {

Result<Exported> export_trl(const ExportedPlan& plan) {
  FIVEFOLD_TRY(check_axes(plan, {}));
  ExportSheet sheet(plan.config);
  SwitchSheet switches(plan.config);
  const int level = fsdp_level(plan, sheet);
  FlagGroup flags = trl_flags(plan, level > 0 ? HubSharding::kFsdp : HubSharding::kNone, sheet, switches);
  say_precision(plan, level > 0 ? HubSharding::kFsdp : HubSharding::kNone, sheet);
  std::vector<ExportedFile> files;
  if (level > 0) {
    flags.flag("fsdp");
    flags.add("fsdp_config", "fsdp.json");
    const nlohmann::ordered_json fsdp = {{"version", 2},
                                         {"reshard_after_forward", level == 3},
                                         {"auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
                                         {"state_dict_type", "SHARDED_STATE_DICT"}};
    files.push_back({"fsdp.json", fsdp.dump(2) + "\n"});
    if (plan.config.parallel.shard_size > 0 && plan.config.parallel.shard_size < plan.config.parallel.dp)
      sheet.cannot("parallel.shard_size", "the Trainer's own FSDP shards over all ranks", "export to accelerate");
    else
      sheet.says({"parallel.shard_size"});
  } else {
    sheet.says({"parallel.shard_size"});
  }
  say_framework(plan, {Framework::kHf}, sheet, switches);
  std::string launch =
      fmt::format("torchrun --nproc_per_node {} --nnodes {}", plan.ranks_on_machine(), plan.machines());
  if (plan.machines() > 1)
    launch +=
        " --node_rank \"${NODE_RANK:?number of this machine}\" --master_addr \"${MASTER_ADDR:?address of machine 0}\"";
  files.insert(files.begin(),
               {"run_trl.sh", trl_script(plan, ForeignTarget::kTrl, launch + " -m trl.scripts.sft", flags)});
  return Exported{ForeignTarget::kTrl, std::move(files), sheet.notes()};
}

}  // namespace fivefold
