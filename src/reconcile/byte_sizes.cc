#include "reconcile/byte_sizes.h"

#include <cstdlib>

#include "planner/rank_view.h"

namespace fivefold {

ByteSizes::ByteSizes(const RunPlan& plan) {
  const ShardingPolicy policy = sharding_policy(plan.config);
  const TapeShape shape = tape_shape(plan.config);
  const RankView part(plan.model, plan.inventory, plan.config, 0);
  int64_t all_full = 0, all_shards = 0;
  for (int index = 0; index < part.inventory().num_units(); ++index) {
    const Unit& unit = part.inventory().units[static_cast<size_t>(index)];
    const int64_t full = unit.padded_numel(policy.shards), shard = full / policy.shards;
    all_full += full;
    all_shards += shard;
    const std::string of_unit = " of " + unit.name;
    add(full * dtype_bytes(policy.compute), "the whole weights" + of_unit);
    add(full * 4, "fp32 values for the whole of " + unit.name);
    add(shard * dtype_bytes(policy.compute), "the weights' shard" + of_unit);
    add(shard * 4, "fp32 values for the shard" + of_unit);
    const UnitOperations operations =
        unit_operations(part.model(), part.inventory(), index, part.split(), part.context(), part.dropped());
    for (const SavedTensor& tensor : saved_tensors(operations, unit.name, shape.compute))
      add(saved_bytes(tensor, shape), "saved tensor " + tensor.name);
    for (const Slot& slot : operations.slots)
      add(slot.width *
              (slot.per_feature   ? 1
               : slot.split_by_tp ? shape.tokens
                                  : shape.stream_tokens()) *
              (slot.fp32 ? 4 : dtype_bytes(shape.compute)),
          "tensor " + slot.name + of_unit);
  }
  add(all_full * dtype_bytes(policy.compute), "the weights of all units");
  add(all_full * 4, "fp32 values for all units");
  add(all_shards * 4, "fp32 values for all shards");
  add(12 * shape.tokens, "a microbatch's ids, targets and positions");
  add(shape.loss_chunk * part.model().vocab * dtype_bytes(shape.compute), "a chunk of logits");
}

void ByteSizes::add(int64_t bytes, const std::string& name) {
  if (bytes > 0) names_.emplace(bytes, name);
}

std::string ByteSizes::name(int64_t bytes) const {
  bytes = std::abs(bytes);
  if (bytes == 0) return "";
  for (int64_t times = 1; times <= 8; ++times) {
    if (bytes % times != 0) continue;
    const auto found = names_.find(bytes / times);
    if (found == names_.end()) continue;
    return times == 1 ? found->second : std::to_string(times) + " x " + found->second;
  }
  return "";
}

}  // namespace fivefold
