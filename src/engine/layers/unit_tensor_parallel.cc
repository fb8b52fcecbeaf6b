// Tensor parallelism of a unit: column and row linears, the embedding and the loss over a split vocabulary, each with
// its collectives (Note [Tensor parallelism] in spec/operations.h).
#include "engine/layers/unit_run.h"

namespace fivefold {

at::Tensor UnitRun::allocate_gathered(int index) const {
  return allocate(Account::kCommBuffers, {microbatch_.tokens, slot_spec(index).width}, context_.compute);
}

void UnitRun::forward_column_linear(const Operation& op) {
  at::Tensor gathered;
  if (sequence_parallel()) {
    gathered = allocate_gathered(op.input);
    context_.tensor->gather(slot(op.input), gathered, Purpose::kActivations);
  }
  linear_product(op, gathered.defined() ? gathered : slot(op.input), optional_weight(op.bias), at::Tensor(),
                 slot(op.output));
}

// Bias and residual are added once, to the sum.
void UnitRun::forward_row_linear(const Operation& op) {
  at::Tensor& output = slot(op.output);
  at::Tensor partial = sequence_parallel() ? allocate_gathered(op.output) : output;
  linear_product(op, slot(op.input), at::Tensor(), at::Tensor(), partial);
  if (sequence_parallel()) {
    context_.tensor->reduce_scatter(partial, output, Purpose::kActivations);
  } else {
    context_.tensor->all_reduce(output, Purpose::kActivations);
  }
  if (op.adapter.scales())
    return scale_columns(op, output, optional_weight(op.bias), op.residual < 0 ? at::Tensor() : slot(op.residual),
                         output);
  if (op.residual >= 0) ops::add_in_place(output, slot(op.residual));
  if (op.bias >= 0) ops::add_in_place(output, weight(op.bias));
}

// The first rank of the group adds the positions: one rank at most has a token's row, so nothing is rounded twice.
void UnitRun::forward_embedding(const Operation& op) {
  const TensorParallel* tensor = context_.tensor;
  at::Tensor& output = slot(op.output);
  at::Tensor partial = sequence_parallel() ? allocate_gathered(op.output) : output;
  const bool adds_positions = tensor == nullptr || tensor->split().rank == 0;
  ops::embedding_forward(microbatch_.input_ids, weight(op.weight).narrow(0, 0, context_.vocabulary_rows),
                         context_.vocabulary, context_.model->embedding_scale, microbatch_.positions,
                         adds_positions ? optional_weight(op.weight2) : at::Tensor(), partial, context_.threads);
  if (sequence_parallel()) {
    tensor->reduce_scatter(partial, output, Purpose::kActivations);
  } else if (tensor != nullptr) {
    tensor->all_reduce(output, Purpose::kActivations);
  }
}

at::Tensor UnitRun::gathered_gradient(const Operation& op) {
  if (!sequence_parallel()) return {};
  at::Tensor gathered = allocate_gathered(op.output);
  context_.tensor->gather(op.kind == OperationKind::kEmbedding ? microbatch_.stream_gradient : output_gradient(op),
                          gathered, Purpose::kActivationGradients);
  return gathered;
}

// The gather of the input is hidden by the product that makes the input's gradient, the reduction of that gradient by
// the product that makes the weight's.
void UnitRun::backward_column_linear(const Operation& op, bool accumulate) {
  const TensorParallel& tensor = *context_.tensor;
  at::Tensor& dout = gradient_[static_cast<size_t>(op.output)];
  at::Tensor& dinput = gradient_[static_cast<size_t>(op.input)];
  const bool rebuilt =
      slot_spec(op.input).lifetime == Lifetime::kRebuilt && (op.needs_input() || slot(op.input).defined());
  if (rebuilt) rebuild_input(op);
  at::Tensor gathered, partial;
  {
    PendingWork gather;
    if (sequence_parallel() && !defers_weights_ && op.needs_input()) {
      gathered = allocate_gathered(op.input);
      gather = PendingWork(tensor.gather(slot(op.input), gathered, Purpose::kActivations, Mode::kAsync));
    }
    if (sequence_parallel()) partial = allocate_gathered(op.input);
    dinput = allocate_like_slot(op.input);
    at::Tensor& sum = sequence_parallel() ? partial : dinput;
    at::Tensor scaled = scaled_buffer(op);
    const at::Tensor& dproduct = scaled_gradient(op, dout, scaled);
    if (context_.fp8) observe_fp8(op, {{Fp8Role::kGradient, dproduct}});
    input_gradient(op, dproduct, at::Tensor(), sum);
    at::Tensor du = low_rank_gradient(op, dproduct);
    add_adapter_input_gradient(op, du, sum);
    PendingWork reduction(sequence_parallel()
                              ? tensor.reduce_scatter(partial, dinput, Purpose::kActivationGradients, Mode::kAsync)
                              : tensor.all_reduce(dinput, Purpose::kActivationGradients, Mode::kAsync));
    gather.wait();
    if (defers_weights_ && op.needs_input()) {
      keep_for_weight(op, slot(op.input), dout);
    } else if (op.needs_input()) {
      const at::Tensor& input = sequence_parallel() ? gathered : slot(op.input);
      weight_gradients(op, dproduct, du, input, accumulate);
      du.reset();
      magnitude_gradient(op, dout, input, scaled, accumulate);
    }
    reduction.wait();
  }
  if (!defers_weights_) free_row_lengths(op);
  if (rebuilt) slot(op.input).reset();
  dout.reset();
}

double UnitRun::chunk_loss(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& statistics,
                           const at::Tensor& all_statistics, at::Tensor& losses, float scale) const {
  if (context_.tensor == nullptr) return ops::cross_entropy(logits, targets, losses, scale, context_.threads);
  // A last chunk of fewer tokens uses the first part of both buffers.
  const int64_t rows = logits.size(0);
  const at::Tensor own = statistics.narrow(0, 0, rows);
  const at::Tensor all =
      all_statistics.view({-1}).narrow(0, 0, all_statistics.size(0) * rows * 2).view({all_statistics.size(0), rows, 2});
  ops::cross_entropy_statistics(logits, targets, context_.vocabulary, own, context_.threads);
  context_.tensor->gather_statistics(own, all);
  return ops::split_cross_entropy(logits, targets, context_.vocabulary, all, losses, scale, context_.threads);
}

}  // namespace fivefold
