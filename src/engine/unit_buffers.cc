#include "engine/unit_buffers.h"

#include <algorithm>
#include <cstring>

#include "base/integer.h"

namespace fivefold {

UnitBuffers::UnitBuffers(const Unit& unit, const ShardingPolicy& policy, int shard, OptimizerStates optimizer)
    : unit_(&unit), policy_(policy), shard_(shard) {
  const auto zeroed = [](Account account, int64_t numel, DType dtype) {
    at::Tensor tensor = allocate(account, {numel}, dtype);
    std::memset(tensor.data_ptr(), 0, tensor.nbytes());
    return tensor;
  };
  const auto weights = [&](int64_t padded, DType dtype) {
    const int64_t elements = policy.shards_params() ? div_exact(padded, int64_t{policy.shards}) : padded;
    return elements > 0 ? zeroed(Account::kParams, elements, dtype) : at::Tensor();
  };
  const int64_t full = unit.padded_numel(policy.shards), part = unit.shard_numel(policy.shards);
  params_ = weights(full, policy.compute);
  frozen_ = weights(unit.padded_frozen_numel(policy.shards), policy.compute);
  four_bit_ = weights(unit.padded_four_bit_bytes(policy.shards), DType::kUint8);
  if (unit.trained()) {
    if (policy.has_master()) master_ = zeroed(Account::kMaster, part, DType::kFloat32);
    grads_ = zeroed(Account::kGrads, policy.shards_grads() ? part : full, policy.grads);
    if (optimizer != OptimizerStates::kNone) moment1_ = MomentBuffer(unit, policy, shard, Account::kMoment1);
    if (optimizer == OptimizerStates::kMoment1And2) moment2_ = MomentBuffer(unit, policy, shard, Account::kMoment2);
  }
  for (const ParameterEntry& entry : unit.parameters)
    layouts_.push_back(entry.storage == Storage::kFourBit ? four_bit_layout(entry, policy.double_quantization)
                                                          : FourBitLayout{});
  if (policy.zero < 3) {
    add_views(Storage::kTrained, params_, weight_views_);
    add_views(Storage::kFrozen, frozen_, weight_views_);
  }
  if (!policy.transient_grads()) add_views(Storage::kTrained, grads_, grad_views_);
}

void UnitBuffers::add_views(Storage storage, const at::Tensor& full, std::vector<at::Tensor>& views) const {
  views.resize(unit_->parameters.size());
  if (!full.defined()) return;
  for (size_t i = 0; i < views.size(); ++i) {
    const ParameterEntry& entry = unit_->parameters[i];
    if (entry.storage == storage) views[i] = full.narrow(0, entry.offset, entry.numel()).view(entry.shape);
  }
}

at::Tensor UnitBuffers::shard_of(const at::Tensor& full) const {
  if (!full.defined()) return full;
  const int64_t part = unit_->shard_numel(policy_.shards);
  return full.numel() == part ? full : full.narrow(0, part * shard_, part);
}

void UnitBuffers::allocate_unsharded() {
  FIVEFOLD_CHECK(!unsharded_.defined() && !unsharded_frozen_.defined() && !unsharded_four_bit_.defined());
  const auto whole = [&](const at::Tensor& shard, DType dtype) {
    return shard.defined() ? allocate(Account::kUnshardedParams, {shard.numel() * policy_.shards}, dtype)
                           : at::Tensor();
  };
  unsharded_ = whole(params_, policy_.compute);
  unsharded_frozen_ = whole(frozen_, policy_.compute);
  unsharded_four_bit_ = whole(four_bit_, DType::kUint8);
  add_views(Storage::kTrained, unsharded_, weight_views_);
  add_views(Storage::kFrozen, unsharded_frozen_, weight_views_);
}

void UnitBuffers::free_unsharded() {
  FIVEFOLD_CHECK(unsharded_.defined() || unsharded_frozen_.defined() || unsharded_four_bit_.defined());
  weight_views_.clear();
  unsharded_.reset();
  unsharded_frozen_.reset();
  unsharded_four_bit_.reset();
}

std::vector<UnitBuffers::Gathered> UnitBuffers::gathered() const {
  std::vector<Gathered> all;
  if (params_.defined()) all.push_back({params_, unsharded_});
  if (frozen_.defined()) all.push_back({frozen_, unsharded_frozen_});
  if (four_bit_.defined()) all.push_back({four_bit_, unsharded_four_bit_});
  return all;
}

void UnitBuffers::allocate_transient_grads() {
  FIVEFOLD_CHECK(!transient_.defined());
  const int64_t full = unit_->padded_numel(policy_.shards);
  transient_ = allocate(Account::kUnshardedGrads, {full}, policy_.compute);
  add_views(Storage::kTrained, transient_, grad_views_);
  // What lies between parameters, and padding of the vocabulary, which nothing writes, reaches the shard and must add
  // nothing to the norm.
  auto* bytes = static_cast<std::byte*>(transient_.data_ptr());
  const int64_t size = dtype_bytes(policy_.compute);
  for (size_t i = 0; i < unit_->parameters.size(); ++i) {
    const ParameterEntry& entry = unit_->parameters[i];
    if (!entry.trained()) continue;
    const ParameterSlice& last = entry.slices.back();
    const bool padded = entry.split == Split::kVocabulary;
    const int64_t end = entry.offset + (padded ? (last.row + last.rows) * entry.cols() : entry.numel());
    const auto follows = std::find_if(unit_->parameters.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                      unit_->parameters.end(), [](const ParameterEntry& e) { return e.trained(); });
    const int64_t next = follows == unit_->parameters.end() ? full : follows->offset;
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
  FIVEFOLD_CHECK(0 <= index && index < static_cast<int>(weight_views_.size()) &&
                     weight_views_[static_cast<size_t>(index)].defined(),
                 unit_->name + " has no parameter for an operation that reads one");
  return weight_views_[static_cast<size_t>(index)];
}

const at::Tensor& UnitBuffers::weight_grad(int index) const {
  FIVEFOLD_CHECK(!grad_views_.empty(), unit_->name + " has no gradient buffer");
  FIVEFOLD_CHECK(0 <= index && index < static_cast<int>(grad_views_.size()));
  return grad_views_[static_cast<size_t>(index)];
}

at::Tensor UnitBuffers::params_shard() const { return shard_of(params_); }
at::Tensor UnitBuffers::master_shard() const {
  if (!policy_.has_fp32_weights()) return {};
  return master_.defined() ? master_ : params_shard();
}
at::Tensor UnitBuffers::grads_shard() const { return shard_of(grads_); }
ShardRange UnitBuffers::range(int parameter) const {
  const ParameterEntry& entry = unit_->parameters[static_cast<size_t>(parameter)];
  return shard_range(*unit_, entry, policy_.shards, shard_);
}

}  // namespace fivefold
