#include "spec/sharding.h"

namespace fivefold {

std::vector<StateBuffer> state_buffers(const Unit& unit, const ShardingPolicy& policy, OptimizerStates optimizer) {
  const int64_t full = unit.padded_numel(policy.shards), shard = unit.shard_numel(policy.shards);
  std::vector<StateBuffer> buffers;
  buffers.push_back({Account::kParams, policy.shards_params() ? shard : full, policy.compute});
  if (policy.has_master()) buffers.push_back({Account::kMaster, shard, DType::kFloat32});
  buffers.push_back({Account::kGrads, policy.shards_grads() ? shard : full, policy.grads});
  if (optimizer != OptimizerStates::kNone) buffers.push_back({Account::kMoment1, shard, DType::kFloat32});
  if (optimizer == OptimizerStates::kMoment1And2) buffers.push_back({Account::kMoment2, shard, DType::kFloat32});
  return buffers;
}

}  // namespace fivefold
