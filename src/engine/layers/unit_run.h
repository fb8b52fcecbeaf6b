// UnitRun: runs the operations of one unit on one microbatch: forward, recompute and backward of a layer, embedding,
// and the head with its loss. Follows Note [Buffer rules] of spec/operations.h. Made for one instruction and then
// dropped.
#pragma once

#include <vector>

#include "engine/layers/primitives.h"
#include "engine/microbatch.h"
#include "engine/operation_clock.h"
#include "engine/unit_buffers.h"
#include "spec/model.h"
#include "spec/operations.h"

namespace fivefold {

// RoPE tables of one rotary geometry, fp32 [positions, rotary_dim / 2].
struct RopeTables {
  at::Tensor cos, sin;
};

// What does not change from instruction to instruction.
struct ModelContext {
  const ModelSpec* model = nullptr;
  const Inventory* inventory = nullptr;
  std::vector<UnitOperations> operations;  // by unit
  std::vector<RopeTables> rope;            // by layer; layers with equal RoPE share tensors
  DType compute = DType::kFloat32;
  int64_t loss_chunk = 512;
  int threads = 1;
  OperationClock* clock = nullptr;  // laps after each operation; none: nothing is timed
};

class UnitRun {
 public:
  UnitRun(const ModelContext& context, const UnitBuffers& buffers, Microbatch& microbatch, int unit);

  void forward(Keep keep);
  void recompute(bool output_unused);
  // `accumulate`: add to the gradients instead of overwriting them.
  void backward(bool accumulate);
  // Head: sum of the losses of the valid tokens. With `scale` above 0 also the gradients, of loss x scale.
  // `output_weight` is the output matrix, with its gradient, wherever it lives.
  double loss(const at::Tensor& output_weight, const at::Tensor& output_weight_grad, float scale, bool accumulate);

 private:
  void run_forward(Keep keep, size_t num_operations);
  void execute(const Operation& op);
  void backward_linear(const Operation& op, bool accumulate);
  void backward_norm(const Operation& op, bool accumulate);
  void backward_attention(const Operation& op);
  void backward_down(const Operation& op, const Operation& activation, bool accumulate);
  void rebuild(const Operation& writer);
  at::Tensor& output_gradient(const Operation& linear);
  void linear_weight_grad(const Operation& op, const at::Tensor& dout, const at::Tensor& input, bool accumulate);

  using Part = OperationClock::Part;
  void lap(const Operation& op, Pass pass, Part part = Part::kRest) const;

  const Operation& writer_of(int slot) const;
  const Slot& slot_spec(int slot) const { return operations_.slots[static_cast<size_t>(slot)]; }
  at::Tensor& slot(int slot);
  at::Tensor& allocate_slot(int slot);
  at::Tensor allocate_like_slot(int slot) const;
  const at::Tensor& weight(int index) const { return buffers_.weight(index); }
  at::Tensor optional_weight(int index) const { return index < 0 ? at::Tensor() : buffers_.weight(index); }
  at::Tensor optional_grad(int index) const { return index < 0 ? at::Tensor() : buffers_.weight_grad(index); }
  ops::NormTensors norm_tensors(const Operation& op);
  const LayerSpec& layer() const;
  ops::HeadGeometry heads() const;
  std::span<const int32_t> documents() const;

  const ModelContext& context_;
  const UnitBuffers& buffers_;
  Microbatch& microbatch_;
  const UnitOperations& operations_;
  int unit_;
  std::vector<at::Tensor> gradient_;  // by slot, during backward
};

}  // namespace fivefold
