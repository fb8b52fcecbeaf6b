// UnitBuffers: the flat buffers of one unit on one rank, and views of each parameter in them. ZeRO levels and HSDP only
// change which of the buffers are full and which are shards (spec/sharding.h). Weights are in up to three buffers: the
// trained ones, the frozen ones, and the frozen ones in 4 bits; only the first have gradients and states.
// One thread per object.
#pragma once

#include <span>
#include <vector>

#include "engine/moment_buffer.h"
#include "spec/inventory.h"
#include "spec/quantized_layout.h"
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
  // View of parameter `index` in the full weights. REQUIRES: gathered, at ZeRO-3; not in 4 bits.
  const at::Tensor& weight(int index) const;
  // A parameter in 4 bits, as numbers. REQUIRES: gathered, at ZeRO-3; `out` has its shape.
  void dequantize(int index, at::Tensor& out, int threads) const;
  // Keeps what this rank holds of a parameter in 4 bits, given the whole parameter.
  void quantize(int index, std::span<const float> whole);
  // View of parameter `index` in the buffer that weight gradients are written to.
  const at::Tensor& weight_grad(int index) const;

  // ---- flat buffers ----
  const at::Tensor& params() const { return params_; }
  const at::Tensor& frozen() const { return frozen_; }
  // By kind of weight: this rank's shard, and where a gather puts the whole (ZeRO-3).
  struct Gathered {
    at::Tensor shard, full;
  };
  std::vector<Gathered> gathered() const;
  const at::Tensor& transient_grads() const { return transient_; }
  const at::Tensor& grads() const { return grads_; }

  // ---- this rank's shard, [shard_numel] ----
  bool trained() const { return unit_->trained(); }
  at::Tensor params_shard() const;  // in the working dtype
  // fp32: the master weights, or the weights themselves in an fp32 run. Undefined where bf16 weights have no master.
  at::Tensor master_shard() const;
  at::Tensor grads_shard() const;
  MomentBuffer& moment1() { return moment1_; }
  MomentBuffer& moment2() { return moment2_; }
  const MomentBuffer& moment1() const { return moment1_; }
  const MomentBuffer& moment2() const { return moment2_; }
  ShardRange range(int parameter) const;

 private:
  // Views of the parameters of one kind, into `views`.
  void add_views(Storage storage, const at::Tensor& full, std::vector<at::Tensor>& views) const;
  at::Tensor shard_of(const at::Tensor& full) const;

  const Unit* unit_;
  ShardingPolicy policy_;
  int shard_;
  at::Tensor params_, frozen_, four_bit_, master_, grads_, transient_;
  at::Tensor unsharded_, unsharded_frozen_, unsharded_four_bit_;
  MomentBuffer moment1_, moment2_;
  std::vector<at::Tensor> weight_views_, grad_views_;
  std::vector<FourBitLayout> layouts_;  // by parameter; of those in 4 bits
};

}  // namespace fivefold
