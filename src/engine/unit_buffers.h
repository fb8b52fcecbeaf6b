// UnitBuffers: the flat buffers of one unit on one rank, and views of each parameter in them. ZeRO levels and HSDP only
// change which of the buffers are full and which are shards (spec/sharding.h). One thread per object.
#pragma once

#include <vector>

#include "engine/tensors.h"
#include "spec/inventory.h"
#include "spec/sharding.h"

namespace fivefold {

class UnitBuffers {
 public:
  // Allocates the persistent buffers, zeroed. `shard` is this rank's position in the shard group.
  UnitBuffers(const Unit& unit, const ShardingPolicy& policy, int shard, OptimizerStates optimizer);

  const Unit& unit() const { return *unit_; }

  // ---- full weights and gradients, as compute needs them ----
  void allocate_unsharded();
  void free_unsharded();
  void allocate_transient_grads();
  void free_transient_grads();
  // View of parameter `index` in the full weights. REQUIRES: gathered, at ZeRO-3.
  const at::Tensor& weight(int index) const;
  // View of parameter `index` in the buffer that weight gradients are written to.
  const at::Tensor& weight_grad(int index) const;

  // ---- flat buffers ----
  const at::Tensor& params() const { return params_; }
  const at::Tensor& unsharded() const { return unsharded_; }
  const at::Tensor& transient_grads() const { return transient_; }
  const at::Tensor& grads() const { return grads_; }

  // ---- this rank's shard, [shard_numel] ----
  at::Tensor params_shard() const;  // in the working dtype
  at::Tensor master_shard() const;  // fp32: the master weights, or the weights themselves in an fp32 run
  at::Tensor grads_shard() const;
  const at::Tensor& moment1() const { return moment1_; }
  const at::Tensor& moment2() const { return moment2_; }
  ShardRange range(int parameter) const;

 private:
  std::vector<at::Tensor> views(const at::Tensor& full) const;
  at::Tensor shard_of(const at::Tensor& full) const;

  const Unit* unit_;
  ShardingPolicy policy_;
  int shard_;
  at::Tensor params_, master_, grads_, moment1_, moment2_, unsharded_, transient_;
  std::vector<at::Tensor> weight_views_, grad_views_;
};

}  // namespace fivefold
