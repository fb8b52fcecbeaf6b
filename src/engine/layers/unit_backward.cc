// Backward of a unit's operations, each as the tape says (Note [Buffer rules] in spec/operations.h).
#include <algorithm>

#include "engine/layers/unit_run.h"

namespace fivefold {

const Operation& UnitRun::writer_of(int index) const {
  const auto writer = std::find_if(operations_.operations.begin(), operations_.operations.end(),
                                   [&](const Operation& op) { return op.output == index; });
  FIVEFOLD_CHECK(writer != operations_.operations.end());
  return *writer;
}

void UnitRun::rebuild(const Operation& writer) {
  at::Tensor& output = allocate_slot(writer.output);
  switch (writer.kind) {
    case OperationKind::kNorm:
      ops::norm_forward(slot(writer.input), norm_tensors(writer), ops::NormStatistics::kReuse, output,
                        context_.threads);
      break;
    case OperationKind::kEmbedding:
    case OperationKind::kLinear:
    case OperationKind::kQkNorm:
    case OperationKind::kRope:
    case OperationKind::kAttention:
    case OperationKind::kGatedActivation:  // backward_down()
    case OperationKind::kActivation:
    case OperationKind::kAddNorm:
    case OperationKind::kBlock:
    case OperationKind::kLoss:
      FIVEFOLD_CHECK(false, "operation " + writer.name + " cannot be rebuilt");
  }
  lap(writer, Pass::kBackward);
}

at::Tensor& UnitRun::output_gradient(const Operation& linear) {
  return linear.residual >= 0 ? microbatch_.stream_gradient : gradient_[static_cast<size_t>(linear.output)];
}

void UnitRun::backward_linear(const Operation& op, bool accumulate) {
  at::Tensor& dout = output_gradient(op);
  at::Tensor& dinput = gradient_[static_cast<size_t>(op.input)];
  const bool rebuilt = slot_spec(op.input).lifetime == Lifetime::kRebuilt;
  if (rebuilt) {
    const Operation& writer = writer_of(op.input);
    if (writer.kind == OperationKind::kGatedActivation || writer.kind == OperationKind::kActivation)
      return backward_down(op, writer, accumulate);
    rebuild(writer);
  }
  linear_weight_grad(op, dout, slot(op.input), accumulate);
  dinput = rebuilt ? std::move(slot(op.input)) : allocate_like_slot(op.input);
  ops::linear_input_grad(dout, weight(op.weight), dinput);
  if (op.residual < 0) dout.reset();
}

void UnitRun::linear_weight_grad(const Operation& op, const at::Tensor& dout, const at::Tensor& input,
                                 bool accumulate) {
  ops::linear_weight_grad(dout, input, buffers_.weight_grad(op.weight), accumulate);
  if (op.bias >= 0) ops::bias_grad(dout, buffers_.weight_grad(op.bias), accumulate, context_.threads);
}

// The linear that reads an activation's product, and the activation. One pass over what the activation read and the
// product's gradient turns them into the former's gradient and the product.
void UnitRun::backward_down(const Operation& op, const Operation& activation, bool accumulate) {
  at::Tensor& dout = output_gradient(op);
  at::Tensor& read = slot(activation.input);
  at::Tensor& product = allocate_slot(op.input);
  ops::linear_input_grad(dout, weight(op.weight), product);
  lap(op, Pass::kBackward, Part::kMatrix);
  if (activation.kind == OperationKind::kGatedActivation) {
    ops::gated_activation_backward(read, product, context_.threads);
  } else {
    ops::activation_backward(layer().mlp.activation, read, product, context_.threads);
  }
  lap(activation, Pass::kBackward);
  linear_weight_grad(op, dout, product, accumulate);
  if (op.residual < 0) dout.reset();
  product.reset();
  gradient_[static_cast<size_t>(activation.input)] = std::move(read);
}

void UnitRun::backward_norm(const Operation& op, bool accumulate) {
  at::Tensor& dout = gradient_[static_cast<size_t>(op.output)];
  ops::norm_backward(slot(op.input), norm_tensors(op), dout, ops::StreamGradient::kAdd, microbatch_.stream_gradient,
                     buffers_.weight_grad(op.weight), optional_grad(op.bias), accumulate, context_.threads);
  dout.reset();
  for (const int extra : op.extra) slot(extra).reset();
  slot(op.input).reset();
}

void UnitRun::backward_attention(const Operation& op) {
  at::Tensor& dout = gradient_[static_cast<size_t>(op.output)];
  at::Tensor& dqkv = gradient_[static_cast<size_t>(op.input)];
  dqkv = allocate_like_slot(op.input);
  ops::attention_backward(slot(op.input), heads(), documents(), slot(op.output), slot(op.extra[0]), dout, dqkv,
                          context_.threads);
  dout.reset();
  slot(op.output).reset();
  slot(op.extra[0]).reset();
  slot(op.input).reset();
}

void UnitRun::backward(bool accumulate) {
  gradient_.assign(operations_.slots.size(), at::Tensor());
  for (size_t i = operations_.operations.size(); i-- > 0;) {
    const Operation& op = operations_.operations[i];
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
                              slot(op.extra[0]), slot(op.extra[1]), buffers_.weight_grad(op.weight),
                              buffers_.weight_grad(op.weight2), accumulate, context_.threads);
        for (const int extra : op.extra) slot(extra).reset();
        break;
      case OperationKind::kGatedActivation:
      case OperationKind::kActivation:
        continue;  // done by the linear that reads it
      case OperationKind::kEmbedding: {
        // The tied matrix already holds the output matrix's gradient.
        const bool add = accumulate || context_.inventory->tied_embeddings;
        ops::embedding_backward(microbatch_.input_ids, microbatch_.stream_gradient, context_.model->embedding_scale,
                                buffers_.weight_grad(op.weight), add, context_.threads);
        if (op.weight2 >= 0)
          ops::embedding_backward(microbatch_.positions, microbatch_.stream_gradient, 1.0,
                                  buffers_.weight_grad(op.weight2), accumulate, context_.threads);
        microbatch_.stream_gradient.reset();
        break;
      }
      case OperationKind::kAddNorm:
      case OperationKind::kBlock:
      case OperationKind::kLoss:
        FIVEFOLD_CHECK(false, "the validation rules let operation " + op.name + " through");
    }
    lap(op, Pass::kBackward, op.kind == OperationKind::kLinear ? Part::kMatrix : Part::kRest);
  }
}

}  // namespace fivefold
