// Tapes of linears: products, adapters, and both parts of their backward.
#include "spec/tape_writer.h"

namespace fivefold {

void TapeWriter::dequantized(const Operation& op) {
  if (!op.four_bit && !shape_.fp8) return;
  allocate(kDequantizedId, op.weight_numel * dtype_bytes(shape_.compute), Account::kUnshardedParams);
  release(kDequantizedId, Account::kUnshardedParams);
}

// The gathered input of a column linear; the partial sum of a row linear or of the embedding.
void TapeWriter::forward_products(const Operation& op) {
  const bool gathers = sequence_parallel() && (op.cut != LinearCut::kNone || op.kind == OperationKind::kEmbedding);
  if (gathers) allocate_gathered(kGatheredId, op.cut == LinearCut::kColumn ? op.input : op.output);
  if (op.kind == OperationKind::kLinear) linear_products(op);
  if (gathers) release_gathered(kGatheredId);
}

void TapeWriter::linear_products(const Operation& op) {
  if (shape_.fp8) rounded(op.input, kFp8InputId);
  dequantized(op);
  if (shape_.fp8) release(kFp8InputId);
  if (!op.adapter.exists()) return;
  allocate_dropped(op, kDroppedInputId);
  low_rank(op, kLowRankId);
  release_dropped(op, kDroppedInputId);
  release(kLowRankId);
}

// The input that a linear rebuilds, unless a rebuild made it.
void TapeWriter::allocate_rebuilt(int slot) {
  if (rebuilt_.erase(slot) == 0) allocate_slot(slot);
}

void TapeWriter::backward_column_linear(const Operation& op) {
  const bool rebuilt = lifetime(op.input) == Lifetime::kRebuilt && (op.needs_input() || rebuilt_.contains(op.input));
  const bool gathers = sequence_parallel() && !defers() && op.needs_input();
  if (rebuilt) allocate_rebuilt(op.input);
  if (gathers) allocate_gathered(kGatheredId, op.input);
  if (sequence_parallel()) allocate_gathered(kPartialSumId, op.input);
  allocate(kGradientId + op.input, slot_bytes(op.input));
  gradient_[op.input] = kGradientId + op.input;
  allocate_scaled(op);
  input_gradient(op);
  if (op.adapter.exists()) low_rank(op, kLowRankGradientId);
  low_rank_input_gradient(op);
  if (!defers()) weight_gradients(op);
  if (op.adapter.exists()) release(kLowRankGradientId);
  if (!defers()) magnitude_gradient(op);
  release_scaled(op);
  if (sequence_parallel()) release_gathered(kPartialSumId);
  if (defers() && op.needs_input()) {
    keep(op.input);
    keep(gradient_.at(op.output));
    return;
  }
  if (gathers) release_gathered(kGatheredId);
  if (rebuilt) release_slot(op.input);
  release_row_lengths(op);
  release(gradient_.at(op.output));
}

void TapeWriter::backward_linear(const Operation& op) {
  if (op.cut == LinearCut::kColumn) return backward_column_linear(op);
  const bool gathers = op.cut == LinearCut::kRow && sequence_parallel(), residual = op.residual >= 0;
  const int output_gradient = kKeptGradientId + static_cast<int>(&op - ops_.operations.data());
  if (gathers) allocate_gathered(output_gradient, op.output);
  const bool of_norm = lifetime(op.input) == Lifetime::kRebuilt && writer(op.input).kind == OperationKind::kNorm;
  const bool of_activation = lifetime(op.input) == Lifetime::kRebuilt && !of_norm;
  const bool rebuilt = of_activation || (of_norm && (op.needs_input() || rebuilt_.contains(op.input)));
  if (rebuilt) allocate_rebuilt(op.input);
  allocate_scaled(op);
  if (!defers() && !of_activation) magnitude_gradient(op);
  if (op.adapter.exists()) low_rank(op, kLowRankGradientId);
  if (!defers() && !of_activation) weight_gradients(op);
  // The gradient takes the place of a rebuilt input, unless both are needed.
  const bool apart = !rebuilt || (defers() && of_norm);
  if (apart) allocate(kGradientId + op.input, slot_bytes(op.input));
  gradient_[op.input] = apart ? kGradientId + op.input : op.input;
  input_gradient(op);
  low_rank_input_gradient(op);
  if (!defers() && of_activation) weight_gradients(op);
  if (op.adapter.exists()) release(kLowRankGradientId);
  if (!defers() && of_activation) magnitude_gradient(op);
  release_scaled(op);
  if (!defers() || !op.needs_input()) {
    release_row_lengths(op);
    if (apart && rebuilt) release_slot(op.input);
    if (gathers) release_gathered(output_gradient);
    if (!residual) release(gradient_.at(op.output));
    return;
  }
  // The residual gradient goes on changing: it is copied, unless it was gathered.
  if (residual && !gathers) allocate(output_gradient, slot_bytes(op.output));
  keep(op.input);
  keep(residual ? output_gradient : gradient_.at(op.output), gathers ? Account::kCommBuffers : Account::kActivations);
}

// In the order in which the first part kept things; column linears gather their input again.
void TapeWriter::backward_weight() {
  backward(Part::kInput);
  events_.clear();
  for (size_t i = ops_.operations.size(); i-- > 0;) {
    const Operation& op = ops_.operations[i];
    if (op.kind != OperationKind::kLinear || !op.needs_input()) continue;
    const bool gathers = op.cut == LinearCut::kColumn && sequence_parallel();
    if (gathers) allocate_gathered(kGatheredId, op.input);
    allocate_scaled(op);
    magnitude_gradient(op);
    if (op.adapter.exists()) low_rank(op, kLowRankGradientId);
    weight_gradients(op);
    if (op.adapter.exists()) release(kLowRankGradientId);
    release_scaled(op);
    release_row_lengths(op);
    if (gathers) release_gathered(kGatheredId);
  }
  for (const Kept& kept : kept_) release(kept.id, kept.account);
}

}  // namespace fivefold
