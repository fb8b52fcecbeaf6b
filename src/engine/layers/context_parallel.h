// ContextParallel: attention of a rank's part of the sequence over all keys, by a ring, by gathering the keys, or by
// exchanging tokens for heads (Ulysses). Each rank holds chunks r and 2c - 1 - r of 2c of every row
// (spec/attention_segments.h). Volumes: docs/communication.md. One thread per object.
//
// Tensors of a rank: qkv [T, (a + 2k) d] packed, out [T, a d], lse fp32 of T a elements.
//
// Note [Exchanges]
//   Ring: key and value blocks travel round, the next one while the present one is computed with; outputs are merged in
//   fp32. Backward: blocks travel again, and with each the fp32 sum of its gradient, which ends at its owner: while a
//   step's part is computed, the sum of the parts before it comes in, and is added.
//   Gathered: keys and values of all ranks, forward and again backward; their gradients are reduce-scattered.
//   Ulysses: an all-to-all turns rows of all heads into all rows of a c-th of the heads; what it brings is kept for
//   backward in the place of qkv. KV heads fewer than c are sent to several ranks, and their gradients come back in
//   parts.
#pragma once

#include "engine/layers/primitives.h"
#include "engine/microbatch.h"
#include "spec/operations.h"

namespace fivefold {

class ContextParallel {
 public:
  // REQUIRES: `communicator` outlives the object; `group` is the rank's context group.
  ContextParallel(Communicator& communicator, Group group, CpKind kind)
      : communicator_(communicator), group_(std::move(group)), kind_(kind) {}

  int degree() const { return group_.size(); }
  // Each number becomes the largest of the ranks'.
  void share_largest(std::vector<float>& numbers) const;
  int rank() const { return group_.rank(); }
  CpKind kind() const { return kind_; }

  // What Ulysses keeps for backward: packed rows of all tokens for this rank's heads, and their output.
  struct Kept {
    at::Tensor qkv, out;
  };
  // `part` of Ulysses: from qkv to kept.qkv (the rest is not touched), from there on (qkv is not read but for the shape
  // of `out`), or both.
  void forward(const at::Tensor& qkv, const ops::HeadGeometry& heads, const ContextSegments& segments, at::Tensor& out,
               at::Tensor& lse, const Kept& kept, RebuildPart part, int threads) const;
  // Writes all of dqkv. qkv is not read under Ulysses.
  void backward(const at::Tensor& qkv, const ops::HeadGeometry& heads, const ContextSegments& segments,
                const at::Tensor& out, const at::Tensor& lse, const Kept& kept, const at::Tensor& dout,
                at::Tensor& dqkv, int threads) const;

 private:
  struct Call;
  void forward_ring(const Call& call, at::Tensor& out, at::Tensor& lse) const;
  void forward_gathered(const Call& call, at::Tensor& out, at::Tensor& lse) const;
  void exchange_ulysses(const Call& call, const Kept& kept) const;
  void forward_ulysses(const Call& call, at::Tensor& out, at::Tensor& lse, const Kept& kept) const;
  void backward_ring(const Call& call, const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                     at::Tensor& dqkv) const;
  void backward_gathered(const Call& call, const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dout,
                         at::Tensor& dqkv) const;
  void backward_ulysses(const Call& call, const at::Tensor& lse, const Kept& kept, const at::Tensor& dout,
                        at::Tensor& dqkv) const;
  struct Passed {
    at::Tensor from, to;
    Purpose purpose;
  };
  // In one batch: sends each `from` to the next rank of the ring and fills `to` from the one before.
  Work pass_on(const std::vector<Passed>& passed) const;
  void exchange(const at::Tensor& from, const at::Tensor& to, Purpose purpose) const;

  Communicator& communicator_;
  Group group_;
  CpKind kind_;
};

}  // namespace fivefold
