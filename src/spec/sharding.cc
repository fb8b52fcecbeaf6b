#include "spec/sharding.h"

#include <algorithm>

#include "base/integer.h"

namespace fivefold {
namespace {

void add_moment(const Unit& unit, const ShardingPolicy& policy, Account account, std::vector<StateBuffer>& buffers) {
  const int64_t shard = unit.shard_numel(policy.shards);
  switch (policy.moments) {
    case OptimizerStateKind::kFp32:
      buffers.push_back({account, shard, DType::kFloat32});
      return;
    case OptimizerStateKind::kBf16:
      buffers.push_back({account, shard, DType::kBFloat16});
      return;
    case OptimizerStateKind::k8Bit: {
      const MomentRoom room = moment_room(unit, policy.shards);
      buffers.push_back({account, room.in_8bit, DType::kUint8});
      buffers.push_back({account, div_exact(room.in_8bit, kStateBlock), DType::kFloat32});
      buffers.push_back({account, room.in_fp32, DType::kFloat32});
      return;
    }
  }
}

}  // namespace

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
  if (optimizer != OptimizerStates::kNone) add_moment(unit, policy, Account::kMoment1, buffers);
  if (optimizer == OptimizerStates::kMoment1And2) add_moment(unit, policy, Account::kMoment2, buffers);
  return buffers;
}

bool has_8bit_states(const ParameterEntry& parameter) {
  return parameter.whole_numel() >= kLeast8BitNumel &&
         std::all_of(parameter.parts.begin(), parameter.parts.end(),
                     [&](const HubPart& part) { return part.rows * parameter.whole_cols() >= kLeast8BitNumel; });
}

MomentRoom moment_room(const Unit& unit, int64_t shards) {
  MomentRoom all;
  for (const ParameterEntry& parameter : unit.parameters)
    if (parameter.trained())
      (has_8bit_states(parameter) ? all.in_8bit : all.in_fp32) += round_up(parameter.numel(), kStateBlock);
  const int64_t shard = unit.shard_numel(shards);
  return {std::min(all.in_8bit, shard), std::min(all.in_fp32, shard)};
}

std::vector<MomentPlace> moment_places(const Unit& unit, int64_t shards, int64_t shard) {
  std::vector<MomentPlace> places;
  MomentRoom used;
  for (const ParameterEntry& parameter : unit.parameters) {
    if (!parameter.trained()) {
      places.emplace_back();
      continue;
    }
    const bool in_8bit = has_8bit_states(parameter);
    int64_t& end = in_8bit ? used.in_8bit : used.in_fp32;
    places.push_back({in_8bit, end});
    const ShardRange range = shard_range(unit, parameter, shards, shard);
    end += round_up(range.end - range.begin, kStateBlock);
  }
  return places;
}

}  // namespace fivefold
