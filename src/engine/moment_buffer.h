// MomentBuffer: one optimizer moment of a rank's shard of a unit, in fp32, bf16 or 8 bits (Note [8-bit states],
// spec/sharding.h). Readers and writers see fp32 values. One thread per object.
#pragma once

#include <span>
#include <vector>

#include "engine/tensors.h"
#include "kernels/dynamic_map.h"
#include "spec/inventory.h"
#include "spec/sharding.h"

namespace fivefold {

class MomentBuffer {
 public:
  MomentBuffer() = default;  // no such moment
  // Allocates, zeroed, what state_buffers() lists.
  MomentBuffer(const Unit& unit, const ShardingPolicy& policy, int shard, Account account);

  bool exists() const { return !tensors_.empty(); }
  // How parameter `index` is stored: kFp32 also for the small ones beside 8 bits.
  OptimizerStateKind kind(int index) const;

  // The first element that the shard holds of parameter `index`. REQUIRES: kind() is that one.
  float* fp32(int index) const;
  kernels::BFloat16* bf16(int index) const;
  uint8_t* codes(int index) const;
  float* scales(int index) const;  // of the blocks of codes()

  // Elements [begin, begin + out.size()) of what the shard holds of a parameter, as fp32.
  void read(int index, int64_t begin, std::span<float> out) const;
  // Stores elements from `begin` on of what the shard holds of a parameter, rounded to its kind. REQUIRES: `begin` is a
  // multiple of kStateBlock, and so is the end unless it is that of the parameter.
  void write(int index, int64_t begin, std::span<const float> values);
  // The whole shard, [shard_numel], as fp32; 0 between parameters.
  std::vector<float> values() const;

  // What it is made of, in the order of state_buffers().
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  ShardRange range(int index) const;

  const Unit* unit_ = nullptr;
  ShardingPolicy policy_;
  kernels::DynamicMapKind map_ = kernels::DynamicMapKind::kSigned;
  int shard_ = 0;
  std::vector<at::Tensor> tensors_;  // one of [shard_numel], or codes, scales and what is in fp32
  std::vector<MomentPlace> places_;  // of 8-bit states
};

}  // namespace fivefold
