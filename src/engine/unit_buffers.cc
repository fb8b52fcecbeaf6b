#include "engine/unit_buffers.h"

#include <cstring>

namespace fivefold {

UnitBuffers::UnitBuffers(const Unit& unit, const ShardingPolicy& policy, int shard, OptimizerStates optimizer)
    : unit_(&unit), policy_(policy), shard_(shard) {
  const int64_t full = unit.padded_numel(policy.shards), part = unit.shard_numel(policy.shards);
  const auto zeroed = [](Account account, int64_t numel, DType dtype) {
    at::Tensor tensor = allocate(account, {numel}, dtype);
    std::memset(tensor.data_ptr(), 0, tensor.nbytes());
    return tensor;
  };
  params_ = zeroed(Account::kParams, policy.shards_params() ? part : full, policy.compute);
  if (policy.compute != DType::kFloat32) master_ = zeroed(Account::kMaster, part, DType::kFloat32);
  grads_ = zeroed(Account::kGrads, policy.shards_grads() ? part : full, policy.grads);
  if (optimizer != OptimizerStates::kNone) moment1_ = zeroed(Account::kMoment1, part, DType::kFloat32);
  if (optimizer == OptimizerStates::kMoment1And2) moment2_ = zeroed(Account::kMoment2, part, DType::kFloat32);
  if (policy.zero < 3) weight_views_ = views(params_);
  if (!policy.transient_grads()) grad_views_ = views(grads_);
}

std::vector<at::Tensor> UnitBuffers::views(const at::Tensor& full) const {
  std::vector<at::Tensor> result;
  result.reserve(unit_->parameters.size());
  for (const ParameterEntry& entry : unit_->parameters)
    result.push_back(full.narrow(0, entry.offset, entry.numel()).view(entry.shape));
  return result;
}

at::Tensor UnitBuffers::shard_of(const at::Tensor& full) const {
  const int64_t part = unit_->shard_numel(policy_.shards);
  return full.numel() == part ? full : full.narrow(0, part * shard_, part);
}

void UnitBuffers::allocate_unsharded() {
  FIVEFOLD_CHECK(!unsharded_.defined());
  unsharded_ = allocate(Account::kUnshardedParams, {unit_->padded_numel(policy_.shards)}, policy_.compute);
  weight_views_ = views(unsharded_);
}

void UnitBuffers::free_unsharded() {
  FIVEFOLD_CHECK(unsharded_.defined());
  weight_views_.clear();
  unsharded_.reset();
}

void UnitBuffers::allocate_transient_grads() {
  FIVEFOLD_CHECK(!transient_.defined());
  const int64_t full = unit_->padded_numel(policy_.shards);
  transient_ = allocate(Account::kUnshardedGrads, {full}, policy_.compute);
  grad_views_ = views(transient_);
  // What lies between parameters, and padding of the vocabulary, which nothing writes, reaches the shard and must add
  // nothing to the norm.
  auto* bytes = static_cast<std::byte*>(transient_.data_ptr());
  const int64_t size = dtype_bytes(policy_.compute);
  for (size_t i = 0; i < unit_->parameters.size(); ++i) {
    const ParameterEntry& entry = unit_->parameters[i];
    const ParameterSlice& last = entry.slices.back();
    const bool padded = entry.split == Split::kVocabulary;
    const int64_t end = entry.offset + (padded ? (last.row + last.rows) * entry.cols() : entry.numel());
    const int64_t next = i + 1 < unit_->parameters.size() ? unit_->parameters[i + 1].offset : full;
    std::memset(bytes + end * size, 0, static_cast<size_t>((next - end) * size));
  }
}

void UnitBuffers::free_transient_grads() {
  FIVEFOLD_CHECK(transient_.defined());
  grad_views_.clear();
  transient_.reset();
}

const at::Tensor& UnitBuffers::weight(int index) const {
  FIVEFOLD_CHECK(!weight_views_.empty(), unit_->name + " is not gathered");
  FIVEFOLD_CHECK(0 <= index && index < static_cast<int>(weight_views_.size()),
                 unit_->name + " has no parameter for an operation that reads one");
  return weight_views_[static_cast<size_t>(index)];
}

const at::Tensor& UnitBuffers::weight_grad(int index) const {
  FIVEFOLD_CHECK(!grad_views_.empty(), unit_->name + " has no gradient buffer");
  FIVEFOLD_CHECK(0 <= index && index < static_cast<int>(grad_views_.size()));
  return grad_views_[static_cast<size_t>(index)];
}

at::Tensor UnitBuffers::params_shard() const { return shard_of(params_); }
at::Tensor UnitBuffers::master_shard() const { return master_.defined() ? master_ : params_shard(); }
at::Tensor UnitBuffers::grads_shard() const { return shard_of(grads_); }
ShardRange UnitBuffers::range(int parameter) const {
  return shard_range(*unit_, unit_->parameters[static_cast<size_t>(parameter)], policy_.shards, shard_);
}

}  // namespace fivefold
