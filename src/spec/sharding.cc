#include "spec/sharding.h"

namespace fivefold {

std::vector<StateBuffer> gathered_buffers(const Unit& unit, const ShardingPolicy& policy) {
  std::vector<StateBuffer> buffers;
  const auto add = [&](int64_t elements, DType dtype) {
    if (elements > 0) buffers.push_back({Account::kUnshardedParams, elements, dtype});
  };
  add(unit.padded_numel(policy.shards), policy.compute);
  add(unit.padded_frozen_numel(policy.shards), policy.compute);
  add(unit.padded_four_bit_bytes(policy.shards), DType::kUint8);
  return buffers;
}

int64_t gathered_bytes(const Unit& unit, const ShardingPolicy& policy) {
  int64_t bytes = 0;
  for (const StateBuffer& buffer : gathered_buffers(unit, policy)) bytes += buffer.bytes();
  return bytes;
}

std::vector<StateBuffer> state_buffers(const Unit& unit, const ShardingPolicy& policy, OptimizerStates optimizer) {
  const int64_t full = unit.padded_numel(policy.shards), shard = unit.shard_numel(policy.shards);
  std::vector<StateBuffer> buffers;
  for (StateBuffer weights : gathered_buffers(unit, policy)) {
    weights.account = Account::kParams;
    if (policy.shards_params()) weights.elements /= policy.shards;
    buffers.push_back(weights);
  }
  if (!unit.trained()) return buffers;
  if (policy.has_master()) buffers.push_back({Account::kMaster, shard, DType::kFloat32});
  buffers.push_back({Account::kGrads, policy.shards_grads() ? shard : full, policy.grads});
  if (optimizer != OptimizerStates::kNone) buffers.push_back({Account::kMoment1, shard, DType::kFloat32});
  if (optimizer == OptimizerStates::kMoment1And2) buffers.push_back({Account::kMoment2, shard, DType::kFloat32});
  return buffers;
}

}  // namespace fivefold
