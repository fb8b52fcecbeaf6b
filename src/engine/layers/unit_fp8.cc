// Products of a unit's linears with fp8 operands (Note [Fp8 scales] in engine/precision/fp8_scaling.h).
#include "engine/layers/unit_run.h"
#include "engine/ops/matrix_product.h"

namespace fivefold {

std::array<float, kNumFp8Roles>& UnitRun::fp8_amax(const Operation& op) {
  auto& all = microbatch_.fp8_amax[static_cast<size_t>(unit_)];
  if (all.empty()) all.resize(operations_.operations.size());
  return all[static_cast<size_t>(&op - operations_.operations.data())];
}

void UnitRun::observe_fp8(const Operation& op, const std::vector<Fp8Seen>& tensors) {
  if (*context_.fp8 == Fp8Scaling::kBlock) return;
  std::vector<float> amax;
  for (const Fp8Seen& seen : tensors) amax.push_back(ops::fp8_amax(seen.tensor, context_.threads));
  if (*context_.fp8 == Fp8Scaling::kCurrent) {
    if (context_.tensor != nullptr) context_.tensor->share_largest(amax);
    if (context_.context != nullptr) context_.context->share_largest(amax);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Fp8Role role = tensors[i].role;
    float scaled_by = amax[i];
    if (Fp8History* history = context_.fp8_history; history != nullptr) {
      const int linear = fp8_linear(unit_, static_cast<int>(&op - operations_.operations.data()));
      history->observe(linear, role, amax[i]);
      if (const float past = history->largest(linear, role); past > 0) scaled_by = past;
    }
    fp8_amax(op)[static_cast<size_t>(role)] = scaled_by;
  }
}

ops::Fp8Tensor UnitRun::fp8_operand(const Operation& op, Fp8Role role, const at::Tensor& tensor, int dim,
                                    at::Tensor out) {
  if (*context_.fp8 == Fp8Scaling::kBlock) {
    ops::fp8_round_blocks(tensor, role, dim, out, context_.threads);
    return {std::move(out), 1.0};
  }
  const double inverse = ops::fp8_round(tensor, fp8_amax(op)[static_cast<size_t>(role)], role, out, context_.threads);
  return {std::move(out), inverse};
}

// The numbers of a weight in 4 bits are rounded where they are.
ops::Fp8Tensor UnitRun::fp8_weight(const Operation& op, const at::Tensor& numbers) {
  return fp8_operand(op, Fp8Role::kWeight, numbers, 1, op.four_bit ? numbers : allocate_weight(op));
}

void UnitRun::fp8_product(const Operation& op, const at::Tensor& input, const at::Tensor& bias,
                          const at::Tensor& residual, at::Tensor& output) {
  const at::Tensor rounded = allocate(Account::kActivations, input.sizes(), context_.compute);
  const at::Tensor numbers = linear_weight(op);
  observe_fp8(op, {{Fp8Role::kInput, input}, {Fp8Role::kWeight, numbers}});
  const ops::Fp8Tensor x = fp8_operand(op, Fp8Role::kInput, input, 1, rounded);
  const ops::Fp8Tensor w = fp8_weight(op, numbers);
  ops::scaled_matrix_product(x.values, w.values.t(), x.inverse * w.inverse, residual.defined() ? residual : bias,
                             output);
  if (residual.defined() && bias.defined()) ops::add_in_place(output, bias);
}

void UnitRun::fp8_input_gradient(const Operation& op, const at::Tensor& dout, at::Tensor& dinput) {
  const ops::Fp8Tensor dy =
      fp8_operand(op, Fp8Role::kGradient, dout, 1, allocate(Account::kActivations, dout.sizes(), context_.compute));
  const ops::Fp8Tensor w = fp8_weight(op, linear_weight(op));
  ops::scaled_matrix_product(dy.values, w.values, dy.inverse * w.inverse, at::Tensor(), dinput);
}

void UnitRun::fp8_weight_gradient(const Operation& op, const at::Tensor& dout, const at::Tensor& input,
                                  bool accumulate) {
  const ops::Fp8Tensor dy =
      fp8_operand(op, Fp8Role::kGradient, dout, 0, allocate(Account::kActivations, dout.sizes(), context_.compute));
  const ops::Fp8Tensor x =
      fp8_operand(op, Fp8Role::kInput, input, 0, allocate(Account::kActivations, input.sizes(), context_.compute));
  const at::Tensor gradient = buffers_.weight_grad(op.weight);
  ops::scaled_matrix_product(dy.values.t(), x.values, dy.inverse * x.inverse, accumulate ? gradient : at::Tensor(),
                             gradient);
}

}  // namespace fivefold
