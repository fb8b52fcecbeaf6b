// Internal to src/spec: TapeWriter, which writes the tapes of operations.h. Rules: Note [Buffer rules] there. tape.cc
// has the passes over a unit's operations, tape_linear.cc what its linears do.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "spec/operations.h"

namespace fivefold {

class TapeWriter {
 public:
  TapeWriter(const UnitOperations& ops, const TapeShape& shape) : ops_(ops), shape_(shape) {}

  int64_t slot_bytes(int slot) const {
    const Slot& s = ops_.slots[static_cast<size_t>(slot)];
    const int64_t tokens = s.per_feature ? 1 : s.split_by_tp ? shape_.tokens : shape_.stream_tokens();
    return tokens * s.width * (s.fp32 ? 4 : dtype_bytes(shape_.compute));
  }
  // A slot of the residual stream's width, of all tokens: what sequence parallelism gathers and scatters.
  int64_t gathered_bytes(int slot) const {
    return shape_.tokens * ops_.slots[static_cast<size_t>(slot)].width * dtype_bytes(shape_.compute);
  }
  bool sequence_parallel() const { return shape_.split.sequence_parts() > 1; }
  bool tensor_parallel() const { return shape_.split.size > 1; }
  void allocate_gathered(int id, int slot) { allocate(id, gathered_bytes(slot), Account::kCommBuffers); }
  void release_gathered(int id) { release(id, Account::kCommBuffers); }
  void allocate(int id, int64_t bytes, Account account = Account::kActivations, Owner owner = Owner::kThisUnit) {
    events_.push_back({true, owner, id, account, bytes});
  }
  void release(int id, Account account = Account::kActivations, Owner owner = Owner::kThisUnit) {
    events_.push_back({false, owner, id, account, 0});
  }
  void allocate_slot(int slot) { allocate(slot, slot_bytes(slot)); }
  void release_slot(int slot) {
    const bool input = lifetime(slot) == Lifetime::kInput;
    release(slot, Account::kActivations, input ? Owner::kPreviousUnit : Owner::kThisUnit);
  }
  Lifetime lifetime(int slot) const { return ops_.slots[static_cast<size_t>(slot)].lifetime; }
  // Is there in backward: saved, or dropped and made again.
  bool was_kept(int slot) const { return lifetime(slot) == Lifetime::kSaved || lifetime(slot) == Lifetime::kDropped; }
  std::vector<TapeEvent> finish() { return std::move(events_); }

  void forward(Keep keep, bool input_is_live_after, size_t num_operations);
  // The lengths of a weight's rows, whose slot is there.
  void measure_rows(const Operation& op) {
    if (op.adapter.scales() && op.four_bit) dequantized(op);
  }
  enum class Part : uint8_t { kBoth, kInput };
  void backward(Part part);
  void backward_weight();
  void loss(bool with_backward);

 private:
  void forward_products(const Operation& op);
  // Of a linear, its adapter's included.
  void linear_products(const Operation& op);
  // The input of an adapter under dropout, or its gradient.
  void allocate_dropped(const Operation& op, int id) {
    if (op.adapter.dropout > 0) allocate(id, shape_.tokens * width(op.input) * dtype_bytes(shape_.compute));
  }
  void release_dropped(const Operation& op, int id) {
    if (op.adapter.dropout > 0) release(id);
  }
  void allocate_scaled(const Operation& op) {
    if (op.adapter.scales()) allocate(kScaledId, shape_.tokens * width(op.output) * dtype_bytes(shape_.compute));
  }
  void release_row_lengths(const Operation& op) {
    if (op.adapter.scales()) release_slot(op.adapter.row_lengths);
  }
  void release_scaled(const Operation& op) {
    if (op.adapter.scales()) release(kScaledId);
  }
  // The product that the magnitudes' gradient is made of.
  void magnitude_gradient(const Operation& op) {
    if (op.adapter.scales()) linear_products(op);
  }
  // The buffer of a weight in 4 bits, or rounded to fp8, for one product with it.
  void dequantized(const Operation& op);
  // The product of the output's gradient and the weight.
  void input_gradient(const Operation& op) {
    if (shape_.fp8) rounded(op.output, kFp8GradientId);
    dequantized(op);
    if (shape_.fp8) release(kFp8GradientId);
  }
  // The adapter's part of it, u's gradient being there.
  void low_rank_input_gradient(const Operation& op) {
    if (!op.adapter.exists()) return;
    allocate_dropped(op, kDroppedGradientId);
    release_dropped(op, kDroppedGradientId);
  }
  void rounded(int slot, int id) { allocate(id, shape_.tokens * width(slot) * dtype_bytes(shape_.compute)); }
  void low_rank(const Operation& op, int id) {
    allocate(id, shape_.tokens * op.adapter.width() * dtype_bytes(shape_.compute));
  }
  // Rounded operands of a weight gradient's product; u of an adapter, while the gradients of A and B are made.
  void weight_gradients(const Operation& op) {
    if (shape_.fp8 && op.trains) {
      rounded(op.output, kFp8GradientId);
      rounded(op.input, kFp8InputId);
      release(kFp8GradientId);
      release(kFp8InputId);
    }
    if (!op.adapter.exists()) return;
    allocate_dropped(op, kDroppedInputId);
    low_rank(op, kLowRankId);
    release(kLowRankId);
    release_dropped(op, kDroppedInputId);
  }
  void append(const std::vector<TapeEvent>& events) { events_.insert(events_.end(), events.begin(), events.end()); }
  void rebuild_before(size_t operation);
  void allocate_rebuilt(int slot);
  void backward_linear(const Operation& op);
  void backward_column_linear(const Operation& op);
  bool defers() const { return part_ == Part::kInput; }
  int64_t width(int slot) const { return ops_.slots[static_cast<size_t>(slot)].width; }
  void keep(int id, Account account = Account::kActivations) { kept_.push_back({id, account}); }
  bool is_kept(int id) const;
  void keep_norm_gradient(int parameter, int64_t width);
  const Operation& writer(int slot) const {
    return *std::find_if(ops_.operations.begin(), ops_.operations.end(),
                         [slot](const Operation& op) { return op.output == slot; });
  }

  // Buffer id that holds the gradient of a slot during backward.
  std::map<int, int> gradient_;
  std::set<int> rebuilt_;  // kRebuilt slots that a rebuild made and nothing has freed
  Part part_ = Part::kBoth;
  struct Kept {
    int id;
    Account account;
  };
  std::vector<Kept> kept_;  // until the weights' part
  const UnitOperations& ops_;
  const TapeShape& shape_;
  std::vector<TapeEvent> events_;
};

}  // namespace fivefold
