// UnitRun: runs the operations of one unit on one microbatch: forward, recompute and backward of a layer, embedding,
// and the head with its loss. Follows Note [Buffer rules] of spec/operations.h. Made for one instruction and then
// dropped.
#pragma once

#include <vector>

#include "engine/layers/context_parallel.h"
#include "engine/layers/low_rank.h"
#include "engine/layers/primitives.h"
#include "engine/layers/rope_tables.h"
#include "engine/layers/tensor_parallel.h"
#include "engine/microbatch.h"
#include "engine/operation_clock.h"
#include "engine/precision/fp8_scaling.h"
#include "engine/unit_buffers.h"
#include "spec/model.h"
#include "spec/operations.h"

namespace fivefold {

// What does not change from instruction to instruction.
struct ModelContext {
  const ModelSpec* model = nullptr;
  const Inventory* inventory = nullptr;
  std::vector<UnitOperations> operations;    // by unit
  std::vector<RopeTables> rope;              // by layer
  const TensorParallel* tensor = nullptr;    // none without tensor parallelism
  const ContextParallel* context = nullptr;  // none without context parallelism
  ops::TableRows vocabulary;                 // rows of the token table and output matrix that this rank holds ...
  int64_t vocabulary_rows = 0;               // ... and their number, without padding
  DType compute = DType::kFloat32;
  int64_t loss_chunk = 512;
  std::optional<Fp8Scaling> fp8;      // products of linears have fp8 operands
  Fp8History* fp8_history = nullptr;  // of delayed scaling
  int threads = 1;
  uint64_t seed = 0;                // of dropout
  OperationClock* clock = nullptr;  // laps after each operation; none: nothing is timed
};

class UnitRun {
 public:
  UnitRun(const ModelContext& context, const UnitBuffers& buffers, Microbatch& microbatch, int unit);

  void forward(Keep keep);
  void recompute(bool output_unused);
  // `accumulate`: add to the gradients instead of overwriting them. `joins_loss`: the embedding's gradient already
  // holds the part that this microbatch's loss has in a tied matrix.
  void backward(bool accumulate, bool joins_loss);
  // Backward of a layer in two parts: input gradients first, weight gradients later.
  void backward_input();
  void backward_weight(bool accumulate);
  // Head: sum of the losses of the valid tokens. With `scale` above 0 also the gradients, of loss x scale.
  // The output matrix with its gradient, wherever they live.
  struct OutputMatrix {
    at::Tensor weight, gradient;
    bool accumulate = false;
  };
  double loss(const OutputMatrix& output, float scale, bool accumulate);
  // DoRA: of each parameter of magnitudes the lengths of the rows as they are now, fp32. Collective over the tensor
  // group.
  std::vector<std::pair<int, at::Tensor>> row_lengths();

 private:
  void run_forward(Keep keep, size_t num_operations);
  void execute(const Operation& op);
  void run_attention(const Operation& op, RebuildPart part);
  void forward_embedding(const Operation& op);
  void forward_column_linear(const Operation& op);
  void forward_row_linear(const Operation& op);
  void backward_linear(const Operation& op, bool accumulate);
  void backward_column_linear(const Operation& op, bool accumulate);
  void backward_norm(const Operation& op, bool accumulate);
  void backward_attention(const Operation& op);
  void backward_down(const Operation& op, const Operation& activation, const at::Tensor& dout, bool accumulate);
  void backward_embedding(const Operation& op, bool accumulate);
  // Sum of a chunk's losses; with scale above 0 the logits become their gradient.
  double chunk_loss(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& statistics,
                    const at::Tensor& all_statistics, at::Tensor& losses, float scale) const;
  void run_backward(bool accumulate);
  void keep_for_weight(const Operation& op, const at::Tensor& input, const at::Tensor& output_gradient);
  // Where the gradient of a norm's parameter goes: the unit's buffer, or what is kept for the second part.
  // Undefined when the norm is not trained.
  at::Tensor norm_gradient(const Operation& norm, int parameter);
  // What runs again before the backward of an operation.
  void rebuild_before(size_t operation);
  void rebuild_norm(const Operation& op);
  // The output of the norm in front of a linear, unless a rebuild before made it.
  void rebuild_input(const Operation& linear);
  void rebuild_attention(const Operation& op, RebuildPart part);
  at::Tensor& output_gradient(const Operation& linear);
  // The gradient of the residual stream of all tokens, for a row linear or the embedding under sequence parallelism;
  // else undefined: the rank has it.
  at::Tensor gathered_gradient(const Operation& op);

  // ---- linears: unit_linear.cc ----
  // The weight as numbers: a view, or, of one in 4 bits, a buffer that lives as long as the tensor.
  at::Tensor linear_weight(const Operation& op) const;
  at::Tensor allocate_weight(const Operation& op) const;
  ops::LowRankWeights adapter_weights(const Operation& op) const;
  at::Tensor allocate_low_rank(const Operation& op, int64_t tokens) const;
  // output = input W^T (+ bias) (+ residual), with the adapter's part and DoRA's factors; of a row linear under tensor
  // parallelism without these.
  void linear_product(const Operation& op, const at::Tensor& input, const at::Tensor& bias, const at::Tensor& residual,
                      at::Tensor& output);
  // The same without DoRA's factors.
  void adapted_product(const Operation& op, const at::Tensor& input, const at::Tensor& bias, const at::Tensor& residual,
                       at::Tensor& output);
  // ---- DoRA and dropout: unit_adapter.cc ----
  // Fills the slot of the lengths of the weight's rows.
  void measure_rows(const Operation& op);
  // Of each column of the output, fp32: magnitude over length, and 1 where no adapter is.
  at::Tensor column_factors(const Operation& op);
  // y = factors x (+ bias) (+ residual). y may be x.
  void scale_columns(const Operation& op, const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                     const at::Tensor& y);
  // A tensor as wide as the output for the two functions below; undefined without DoRA.
  at::Tensor scaled_buffer(const Operation& op) const;
  // The gradient of what the products made: in `buffer`, or `dout` itself where that is undefined.
  const at::Tensor& scaled_gradient(const Operation& op, const at::Tensor& dout, const at::Tensor& buffer);
  // Makes the product again in `buffer`. Nothing where that is undefined.
  void magnitude_gradient(const Operation& op, const at::Tensor& dout, const at::Tensor& input, at::Tensor& buffer,
                          bool accumulate);
  void free_row_lengths(const Operation& op) {
    if (op.adapter.scales()) slot(op.adapter.row_lengths).reset();
  }
  bool drops(const Operation& op) const;
  // `from` under the linear's mask becomes `to`, or is added to it.
  void drop(const Operation& op, const at::Tensor& from, const at::Tensor& to, kernels::Accumulate mode) const;
  // What the adapter reads: the input, dropped where dropout is on.
  at::Tensor adapter_input(const Operation& op, const at::Tensor& input) const;
  void add_adapter_input_gradient(const Operation& op, const at::Tensor& du, at::Tensor& dinput) const;
  // Gradient of the adapter's u; undefined without an adapter.
  at::Tensor low_rank_gradient(const Operation& op, const at::Tensor& dout) const;
  void input_gradient(const Operation& op, const at::Tensor& dout, const at::Tensor& du, at::Tensor& dinput);
  // ---- fp8: unit_fp8.cc ----
  std::array<float, kNumFp8Roles>& fp8_amax(const Operation& op);
  struct Fp8Seen {
    Fp8Role role;
    at::Tensor tensor;
  };
  // Finds the largest magnitudes of tensors, and agrees on them with the ranks that have other parts of them.
  void observe_fp8(const Operation& op, const std::vector<Fp8Seen>& tensors);
  // The tensor rounded into `out`, with what the product is to be multiplied by. `dim`: along which the product sums.
  ops::Fp8Tensor fp8_operand(const Operation& op, Fp8Role role, const at::Tensor& tensor, int dim, at::Tensor out);
  ops::Fp8Tensor fp8_weight(const Operation& op, const at::Tensor& numbers);
  void fp8_product(const Operation& op, const at::Tensor& input, const at::Tensor& bias, const at::Tensor& residual,
                   at::Tensor& output);
  void fp8_input_gradient(const Operation& op, const at::Tensor& dout, at::Tensor& dinput);
  void fp8_weight_gradient(const Operation& op, const at::Tensor& dout, const at::Tensor& input, bool accumulate);
  // Of weight and bias, as far as they are trained, and of the adapter.
  void weight_gradients(const Operation& op, const at::Tensor& dout, const at::Tensor& du, const at::Tensor& input,
                        bool accumulate);

  using Part = OperationClock::Part;
  void lap(const Operation& op, Pass pass, Part part = Part::kRest) const;

  const Operation& writer_of(int slot) const;
  const Slot& slot_spec(int slot) const { return operations_.slots[static_cast<size_t>(slot)]; }
  at::Tensor& slot(int slot);
  at::Tensor& allocate_slot(int slot);
  at::Tensor allocate_like_slot(int slot) const;
  // All tokens of a tensor as wide as the slot, of which sequence parallelism leaves this rank a part.
  at::Tensor allocate_gathered(int slot) const;
  bool sequence_parallel() const { return context_.tensor != nullptr && context_.tensor->sequence_parallel(); }
  int64_t stream_tokens() const;
  const at::Tensor& weight(int index) const { return buffers_.weight(index); }
  at::Tensor optional_weight(int index) const { return index < 0 ? at::Tensor() : buffers_.weight(index); }
  at::Tensor optional_grad(const Operation& op, int index) const {
    return index < 0 || !op.trains ? at::Tensor() : buffers_.weight_grad(index);
  }
  ops::NormTensors norm_tensors(const Operation& op);
  const LayerSpec& layer() const;
  ops::HeadGeometry heads() const;
  std::span<const int32_t> documents() const;
  // What Ulysses keeps between forward and backward.
  ContextParallel::Kept kept_heads(const Operation& op);

  const ModelContext& context_;
  const UnitBuffers& buffers_;
  Microbatch& microbatch_;
  const UnitOperations& operations_;
  int unit_;
  bool defers_weights_ = false, joins_loss_ = false;
  std::vector<at::Tensor> gradient_;  // by slot, during backward
};

}  // namespace fivefold
