// StageExecutor: what the runtime needs from an engine to run a Program on one rank: computation on units, and access
// to the buffers that collectives between units read and write. The collectives of tensor parallelism, which lie inside
// a unit, are part of its computation. One thread per object.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "schedule/program.h"
#include "spec/tensor_split.h"

namespace fivefold {

class StageExecutor {
 public:
  virtual ~StageExecutor() = default;

  // ---- computation ----
  virtual void forward(int unit, int microbatch, Keep keep) = 0;
  virtual void recompute(int unit, int microbatch, bool output_unused) = 0;
  // Instructions kLoss and kBackward, with their flags.
  virtual void loss(const Instruction& instruction) = 0;
  virtual void backward(const Instruction& instruction) = 0;
  virtual void backward_input(int unit, int microbatch) = 0;
  virtual void backward_weight(int unit, int microbatch, bool accumulate) = 0;
  virtual void accumulate_grads(int unit, bool accumulate) = 0;  // adds (or copies) the transient gradient and frees it
  virtual void optimizer_step(int unit) = 0;

  // ---- transfers between pipeline stages ----
  // The activations or their gradient that a send hands over, or that a receive is to fill (allocated by the call).
  virtual Buffer outgoing(const Instruction& send) = 0;
  virtual Buffer incoming(const Instruction& receive) = 0;
  virtual void free_sent(const Instruction& wait_send) = 0;

  // ---- buffers of a unit ----
  virtual void allocate_unsharded(int unit) = 0;
  virtual void free_unsharded(int unit) = 0;
  virtual void allocate_transient_grads(int unit) = 0;  // padding between parameters is zero
  virtual void free_transient_grads(int unit) = 0;
  // ZeRO-3: what one gather of the unit fills, each part from this rank's shard of it: trained and frozen weights.
  virtual std::vector<InOut> unsharded_params(int unit) = 0;
  virtual Buffer params(int unit) = 0;  // persistent trained weights: full, or the shard at ZeRO-3
  virtual Buffer transient_grads(int unit) = 0;
  virtual Buffer grads(int unit) = 0;  // persistent gradient: full, or the shard at ZeRO-2/3

  // ---- gradients that are partial sums over other ranks than data-parallel ones ----
  // Copies those of this rank's shards, of all units, into one buffer; empty when there are none.
  virtual Buffer pack_partial_grads(PartialOver over) = 0;
  // Copies the buffer, now summed, back and frees it. REQUIRES: pack_partial_grads(over) before.
  virtual void unpack_partial_grads(PartialOver over) = 0;

  // ---- scalars of a step ----
  virtual int64_t local_valid_tokens() const = 0;
  virtual void set_global_valid_tokens(int64_t tokens) = 0;
  virtual double local_loss_sum() const = 0;     // over this rank's valid tokens
  virtual double local_squared_grad_norm() = 0;  // over this rank's shard
  virtual void set_grad_norm(double norm) = 0;   // fixes the clipping factor of the step
};

}  // namespace fivefold
