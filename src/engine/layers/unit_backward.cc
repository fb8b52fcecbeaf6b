// Backward of a unit's operations, each as the tape says (Note [Buffer rules] in spec/operations.h).
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/layers/unit_run.h"

namespace fivefold {

const Operation& UnitRun::writer_of(int index) const {
  const auto writer = std::find_if(operations_.operations.begin(), operations_.operations.end(),
                                   [&](const Operation& op) { return op.output == index; });
  FIVEFOLD_CHECK(writer != operations_.operations.end());
  return *writer;
}

at::Tensor& UnitRun::output_gradient(const Operation& linear) {
  return linear.residual >= 0 ? microbatch_.stream_gradient : gradient_[static_cast<size_t>(linear.output)];
}

void UnitRun::backward_linear(const Operation& op, bool accumulate) {
  if (op.cut == LinearCut::kColumn) return backward_column_linear(op, accumulate);
  at::Tensor& dstream = output_gradient(op);
  const at::Tensor gathered = gathered_gradient(op);
  const at::Tensor& dout = gathered.defined() ? gathered : dstream;
  at::Tensor& dinput = gradient_[static_cast<size_t>(op.input)];
  bool rebuilt = slot_spec(op.input).lifetime == Lifetime::kRebuilt;
  if (rebuilt) {
    const Operation& writer = writer_of(op.input);
    if (writer.kind == OperationKind::kGatedActivation || writer.kind == OperationKind::kActivation)
      return backward_down(op, writer, dout, accumulate);
    rebuilt = op.needs_input() || slot(op.input).defined();
    if (rebuilt) rebuild_input(op);
  }
  at::Tensor scaled = scaled_buffer(op);
  if (!defers_weights_) magnitude_gradient(op, dout, slot(op.input), scaled, accumulate);
  const at::Tensor& dproduct = scaled_gradient(op, dout, scaled);
  if (context_.fp8) observe_fp8(op, {{Fp8Role::kGradient, dproduct}});
  at::Tensor du = low_rank_gradient(op, dproduct);
  if (defers_weights_) {
    dinput = allocate_like_slot(op.input);
    input_gradient(op, dproduct, du, dinput);
    du.reset();
    scaled.reset();
    if (op.needs_input()) keep_for_weight(op, slot(op.input), dout);
    if (rebuilt) slot(op.input).reset();
  } else {
    if (op.needs_input()) weight_gradients(op, dproduct, du, slot(op.input), accumulate);
    dinput = rebuilt ? std::move(slot(op.input)) : allocate_like_slot(op.input);
    input_gradient(op, dproduct, du, dinput);
    free_row_lengths(op);
  }
  if (op.residual < 0) dstream.reset();
}

// The residual gradient goes on changing: it is copied, unless it was gathered.
void UnitRun::keep_for_weight(const Operation& op, const at::Tensor& input, const at::Tensor& output_gradient) {
  at::Tensor kept = output_gradient;
  if (output_gradient.is_same(microbatch_.stream_gradient)) {
    kept = allocate(Account::kActivations, output_gradient.sizes(), context_.compute);
    std::memcpy(kept.data_ptr(), output_gradient.data_ptr(), kept.nbytes());
  }
  const auto index = static_cast<size_t>(&op - operations_.operations.data());
  microbatch_.kept[static_cast<size_t>(unit_)].products.push_back({index, input, std::move(kept)});
}

at::Tensor UnitRun::norm_gradient(const Operation& norm, int parameter) {
  if (parameter < 0 || !norm.trains) return {};
  if (!defers_weights_) return buffers_.weight_grad(parameter);
  const int64_t width = buffers_.unit().parameters[static_cast<size_t>(parameter)].numel();
  at::Tensor gradient = allocate(Account::kActivations, {width}, DType::kFloat32);
  microbatch_.kept[static_cast<size_t>(unit_)].vectors.push_back({parameter, gradient});
  return gradient;
}

// The linear that reads an activation's product, and the activation. One pass over what the activation read and the
// product's gradient turns them into the former's gradient and the product.
void UnitRun::backward_down(const Operation& op, const Operation& activation, const at::Tensor& dout, bool accumulate) {
  at::Tensor& read = slot(activation.input);
  at::Tensor& product = allocate_slot(op.input);
  at::Tensor scaled = scaled_buffer(op);
  const at::Tensor& dproduct = scaled_gradient(op, dout, scaled);
  if (context_.fp8) observe_fp8(op, {{Fp8Role::kGradient, dproduct}});
  at::Tensor du = low_rank_gradient(op, dproduct);
  input_gradient(op, dproduct, du, product);
  if (defers_weights_) {
    du.reset();
    scaled.reset();
  }
  lap(op, Pass::kBackward, Part::kMatrix);
  if (activation.kind == OperationKind::kGatedActivation) {
    ops::gated_activation_backward(read, product, context_.threads);
  } else {
    ops::activation_backward(layer().mlp.activation, read, product, context_.threads);
  }
  lap(activation, Pass::kBackward);
  if (defers_weights_ && op.needs_input()) {
    keep_for_weight(op, product, dout);
  } else if (op.needs_input()) {
    weight_gradients(op, dproduct, du, product, accumulate);
    du.reset();
    magnitude_gradient(op, dout, product, scaled, accumulate);
    free_row_lengths(op);
  }
  if (op.residual < 0) output_gradient(op).reset();
  product.reset();
  gradient_[static_cast<size_t>(activation.input)] = std::move(read);
}

void UnitRun::backward_norm(const Operation& op, bool accumulate) {
  at::Tensor& dout = gradient_[static_cast<size_t>(op.output)];
  ops::norm_backward(slot(op.input), norm_tensors(op), dout, ops::StreamGradient::kAdd, microbatch_.stream_gradient,
                     norm_gradient(op, op.weight), norm_gradient(op, op.bias), accumulate && !defers_weights_,
                     context_.threads);
  dout.reset();
  for (const int extra : op.extra) slot(extra).reset();
  slot(op.input).reset();
}

void UnitRun::backward_attention(const Operation& op) {
  at::Tensor& dout = gradient_[static_cast<size_t>(op.output)];
  at::Tensor& dqkv = gradient_[static_cast<size_t>(op.input)];
  dqkv = allocate_like_slot(op.input);
  if (context_.context != nullptr) {
    context_.context->backward(slot(op.input), heads(), microbatch_.context, slot(op.output), slot(op.extra[0]),
                               kept_heads(op), dout, dqkv, context_.threads);
  } else {
    ops::attention_backward(slot(op.input), heads(), documents(), slot(op.output), slot(op.extra[0]), dout, dqkv,
                            context_.threads);
  }
  dout.reset();
  slot(op.output).reset();
  for (const int extra : op.extra) slot(extra).reset();
  slot(op.input).reset();
}

void UnitRun::backward_embedding(const Operation& op, bool accumulate) {
  if (!op.trains) return microbatch_.stream_gradient.reset();
  const at::Tensor gathered = gathered_gradient(op);
  const at::Tensor& dout = gathered.defined() ? gathered : microbatch_.stream_gradient;
  const bool add = accumulate || joins_loss_;
  ops::embedding_backward(microbatch_.input_ids, dout, context_.vocabulary, context_.model->embedding_scale,
                          buffers_.weight_grad(op.weight).narrow(0, 0, context_.vocabulary_rows), add,
                          context_.threads);
  if (op.weight2 >= 0)
    ops::embedding_backward(microbatch_.positions, dout, {}, 1.0, buffers_.weight_grad(op.weight2), accumulate,
                            context_.threads);
  microbatch_.stream_gradient.reset();
}

void UnitRun::backward(bool accumulate, bool joins_loss) {
  joins_loss_ = joins_loss;
  run_backward(accumulate);
}

void UnitRun::backward_input() {
  defers_weights_ = true;
  run_backward(false);
}

void UnitRun::backward_weight(bool accumulate) {
  KeptForWeights kept = std::exchange(microbatch_.kept[static_cast<size_t>(unit_)], {});
  for (const KeptForWeights::Product& product : kept.products) {
    const Operation& op = operations_.operations[product.operation];
    at::Tensor gathered;
    if (op.cut == LinearCut::kColumn && sequence_parallel()) {
      gathered = allocate_gathered(op.input);
      context_.tensor->gather(product.input, gathered, Purpose::kActivations);
    }
    const at::Tensor& input = gathered.defined() ? gathered : product.input;
    at::Tensor scaled = scaled_buffer(op);
    magnitude_gradient(op, product.output_gradient, input, scaled, accumulate);
    const at::Tensor& dproduct = scaled_gradient(op, product.output_gradient, scaled);
    weight_gradients(op, dproduct, low_rank_gradient(op, dproduct), input, accumulate);
    free_row_lengths(op);
    lap(op, Pass::kBackward, Part::kMatrix);
  }
  for (const KeptForWeights::Vector& vector : kept.vectors) {
    at::Tensor gradient = buffers_.weight_grad(vector.parameter);
    if (accumulate)
      at::add_out(gradient, gradient, vector.gradient);
    else
      gradient.copy_(vector.gradient);
  }
}

void UnitRun::run_backward(bool accumulate) {
  gradient_.assign(operations_.slots.size(), at::Tensor());
  for (size_t i = operations_.operations.size(); i-- > 0;) {
    const Operation& op = operations_.operations[i];
    rebuild_before(i);
    switch (op.kind) {
      case OperationKind::kLinear:
        backward_linear(op, accumulate);
        break;
      case OperationKind::kNorm:
        backward_norm(op, accumulate);
        break;
      case OperationKind::kAttention:
        backward_attention(op);
        break;
      case OperationKind::kRope: {
        const RopeTables& tables = context_.rope[static_cast<size_t>(buffers_.unit().layer)];
        ops::rope(gradient_[static_cast<size_t>(op.input)], heads(), tables.cos, tables.sin, microbatch_.positions,
                  ops::RopeTurn::kBackward, context_.threads);
        break;
      }
      case OperationKind::kQkNorm:
        ops::qk_norm_backward(gradient_[static_cast<size_t>(op.input)], heads(), weight(op.weight), weight(op.weight2),
                              slot(op.extra[0]), slot(op.extra[1]), norm_gradient(op, op.weight),
                              norm_gradient(op, op.weight2), accumulate && !defers_weights_, context_.threads);
        for (const int extra : op.extra) slot(extra).reset();
        break;
      case OperationKind::kGatedActivation:
      case OperationKind::kActivation:
        continue;  // done by the linear that reads it
      case OperationKind::kEmbedding:
        backward_embedding(op, accumulate);
        break;
      case OperationKind::kAddNorm:
      case OperationKind::kBlock:
      case OperationKind::kLoss:
        FIVEFOLD_CHECK(false, "the validation rules let operation " + op.name + " through");
    }
    lap(op, Pass::kBackward, op.kind == OperationKind::kLinear ? Part::kMatrix : Part::kRest);
  }
}

}  // namespace fivefold
