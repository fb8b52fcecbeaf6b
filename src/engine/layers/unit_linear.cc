// Linears of a unit: products with weights that may be stored in 4 bits, and their adapters.
#include "engine/layers/unit_run.h"

namespace fivefold {

at::Tensor UnitRun::linear_weight(const Operation& op) const {
  if (!op.four_bit) return weight(op.weight);
  at::Tensor numbers = allocate_weight(op);
  buffers_.dequantize(op.weight, numbers, context_.threads);
  return numbers;
}

at::Tensor UnitRun::allocate_weight(const Operation& op) const {
  const ParameterEntry& entry = buffers_.unit().parameters[static_cast<size_t>(op.weight)];
  return allocate(Account::kUnshardedParams, entry.shape, context_.compute);
}

ops::LowRankWeights UnitRun::adapter_weights(const Operation& op) const {
  return {&op.adapter, weight(op.adapter.a), weight(op.adapter.b)};
}

at::Tensor UnitRun::allocate_low_rank(const Operation& op, int64_t tokens) const {
  return allocate(Account::kActivations, {tokens, op.adapter.width()}, context_.compute);
}

void UnitRun::linear_product(const Operation& op, const at::Tensor& input, const at::Tensor& bias,
                             const at::Tensor& residual, at::Tensor& output) {
  // DoRA scales what the products make, of a row linear the sum over its tensor group, before anything is added.
  const bool scales = op.adapter.scales();
  adapted_product(op, input, scales ? at::Tensor() : bias, scales ? at::Tensor() : residual, output);
  if (scales && op.cut != LinearCut::kRow) scale_columns(op, output, bias, residual, output);
}

void UnitRun::adapted_product(const Operation& op, const at::Tensor& input, const at::Tensor& bias,
                              const at::Tensor& residual, at::Tensor& output) {
  if (context_.fp8)
    fp8_product(op, input, bias, residual, output);
  else
    ops::linear_forward(input, linear_weight(op), bias, residual, output);
  if (!op.adapter.exists()) return;
  const ops::LowRankWeights adapter = adapter_weights(op);
  at::Tensor dropped = adapter_input(op, input);
  at::Tensor u = allocate_low_rank(op, input.size(0));
  ops::low_rank_down(adapter, dropped, u);
  dropped.reset();
  ops::low_rank_up(adapter, u, output);
}

at::Tensor UnitRun::low_rank_gradient(const Operation& op, const at::Tensor& dout) const {
  if (!op.adapter.exists()) return {};
  at::Tensor du = allocate_low_rank(op, dout.size(0));
  ops::low_rank_down_grad(adapter_weights(op), dout, du);
  return du;
}

void UnitRun::input_gradient(const Operation& op, const at::Tensor& dout, const at::Tensor& du, at::Tensor& dinput) {
  if (context_.fp8)
    fp8_input_gradient(op, dout, dinput);
  else
    ops::linear_input_grad(dout, linear_weight(op), dinput);
  add_adapter_input_gradient(op, du, dinput);
}

void UnitRun::weight_gradients(const Operation& op, const at::Tensor& dout, const at::Tensor& du,
                               const at::Tensor& input, bool accumulate) {
  if (op.trains) {
    if (context_.fp8)
      fp8_weight_gradient(op, dout, input, accumulate);
    else
      ops::linear_weight_grad(dout, input, buffers_.weight_grad(op.weight), accumulate);
    if (op.bias >= 0) ops::bias_grad(dout, buffers_.weight_grad(op.bias), accumulate, context_.threads);
  }
  if (!du.defined()) return;
  const ops::LowRankWeights adapter = adapter_weights(op);
  const at::Tensor dropped = adapter_input(op, input);
  at::Tensor u = allocate_low_rank(op, input.size(0));
  ops::low_rank_down(adapter, dropped, u);
  ops::low_rank_weight_grad(adapter, dropped, u, dout, du, buffers_.weight_grad(op.adapter.a),
                            buffers_.weight_grad(op.adapter.b), accumulate);
}

}  // namespace fivefold
