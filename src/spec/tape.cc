// Tapes of the operations in operations.h; see Note [Buffer rules] there.
#include <algorithm>
#include <map>

#include "spec/operations.h"

namespace fivefold {
namespace {

class TapeWriter {
 public:
  TapeWriter(const UnitOperations& ops, const TapeShape& shape) : ops_(ops), shape_(shape) {}

  int64_t slot_bytes(int slot) const {
    const Slot& s = ops_.slots[static_cast<size_t>(slot)];
    return shape_.tokens * s.width * (s.fp32 ? 4 : dtype_bytes(shape_.compute));
  }
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
  std::vector<TapeEvent> finish() { return std::move(events_); }

  void forward(Keep keep, bool input_is_live_after, size_t num_operations);
  void backward();
  void loss(bool with_backward);

 private:
  void backward_linear(const Operation& op);
  // Buffer id that holds the gradient of a slot during backward.
  std::map<int, int> gradient_;
  const UnitOperations& ops_;
  const TapeShape& shape_;
  std::vector<TapeEvent> events_;
};

std::vector<int> written(const Operation& op) {
  std::vector<int> slots = op.extra;
  if (op.output >= 0 && op.output != op.input) slots.push_back(op.output);
  return slots;
}

bool reads(const Operation& op, int slot) { return op.input == slot || op.residual == slot; }

void TapeWriter::forward(Keep keep, bool input_is_live_after, size_t num_operations) {
  for (size_t i = 0; i < num_operations; ++i) {
    const Operation& op = ops_.operations[i];
    for (const int slot : written(op)) allocate_slot(slot);
    for (int slot = 0; slot < static_cast<int>(ops_.slots.size()); ++slot) {
      if (slot == ops_.output) continue;
      // Last operation of this pass that touches the slot: its writer when nothing reads it.
      size_t last = num_operations;
      for (size_t j = 0; j < num_operations; ++j) {
        const auto out = written(ops_.operations[j]);
        if (reads(ops_.operations[j], slot) || std::find(out.begin(), out.end(), slot) != out.end()) last = j;
      }
      if (last != i) continue;
      const bool keeps = lifetime(slot) == Lifetime::kInput ? input_is_live_after
                                                            : keep == Keep::kAll && lifetime(slot) == Lifetime::kSaved;
      if (!keeps) release_slot(slot);
    }
  }
}

void TapeWriter::backward_linear(const Operation& op) {
  const bool rebuilt = lifetime(op.input) == Lifetime::kRebuilt;
  if (rebuilt) {
    allocate_slot(op.input);
    gradient_[op.input] = op.input;
  } else {
    allocate(kGradientId + op.input, slot_bytes(op.input));
    gradient_[op.input] = kGradientId + op.input;
  }
  if (op.residual < 0) release(gradient_.at(op.output));
}

void TapeWriter::backward() {
  for (size_t i = ops_.operations.size(); i-- > 0;) {
    const Operation& op = ops_.operations[i];
    switch (op.kind) {
      case OperationKind::kLinear:
        backward_linear(op);
        break;
      case OperationKind::kGatedActivation:
      case OperationKind::kActivation:
        release(gradient_.at(op.output));
        gradient_[op.input] = op.input;
        break;
      case OperationKind::kQkNorm:
        for (const int slot : op.extra) release_slot(slot);
        break;
      case OperationKind::kRope:
        break;
      case OperationKind::kAttention:
        allocate(kGradientId + op.input, slot_bytes(op.input));
        gradient_[op.input] = kGradientId + op.input;
        release(gradient_.at(op.output));
        release_slot(op.output);
        for (const int slot : op.extra) release_slot(slot);
        release_slot(op.input);
        break;
      case OperationKind::kNorm:
        release(gradient_.at(op.output));
        for (const int slot : op.extra) release_slot(slot);
        release_slot(op.input);
        break;
      case OperationKind::kAddNorm:
        allocate(kGradientId + op.input, slot_bytes(op.input));
        gradient_[op.input] = kGradientId + op.input;
        for (const int slot : op.extra) release_slot(slot);
        if (lifetime(op.input) == Lifetime::kSaved) release_slot(op.input);
        break;
      case OperationKind::kBlock:
        allocate(op.input, slot_bytes(op.input));
        gradient_[op.input] = op.input;
        release(gradient_.at(op.output));
        for (const int slot : op.extra) release_slot(slot);
        if (lifetime(op.output) == Lifetime::kSaved) release_slot(op.output);
        break;
      case OperationKind::kEmbedding:
        release(kStreamGradientId, Account::kActivations, Owner::kMicrobatch);
        break;
      case OperationKind::kLoss:
        FIVEFOLD_CHECK(false);
    }
  }
}

void TapeWriter::loss(bool with_backward) {
  const int64_t element = dtype_bytes(shape_.compute), h = ops_.slots[0].width;
  const int64_t chunk = std::min(shape_.loss_chunk, shape_.tokens);
  const Operation& norm = ops_.operations[0];
  for (const int slot : norm.extra) allocate_slot(slot);
  if (with_backward)
    allocate(kStreamGradientId, shape_.tokens * h * element, Account::kActivations, Owner::kMicrobatch);
  const int normed = kTemporaryId, logits = ops_.output, losses = kTemporaryId + 1;
  allocate(normed, chunk * h * element);
  allocate(logits, chunk * ops_.slots[static_cast<size_t>(logits)].width * element, Account::kLogits);
  allocate(losses, chunk * 4, Account::kLogits);
  release(normed);
  release(logits, Account::kLogits);
  release(losses, Account::kLogits);
  for (const int slot : norm.extra) release_slot(slot);
  release_slot(0);
}

}  // namespace

std::vector<TapeEvent> tape(const UnitOperations& ops, TapeStep step, const TapeShape& shape,
                            const TapeOptions& options) {
  TapeWriter writer(ops, shape);
  switch (step) {
    case TapeStep::kForward:
      writer.forward(options.keep, options.keep != Keep::kNothing, ops.operations.size());
      break;
    case TapeStep::kRecompute: {
      // Without a reader of the output, what follows the last saved tensor is not computed.
      size_t count = ops.operations.size();
      const auto writes_saved = [&](const Operation& op) {
        const auto slots = written(op);
        return std::any_of(slots.begin(), slots.end(),
                           [&](int slot) { return writer.lifetime(slot) == Lifetime::kSaved; });
      };
      if (options.output_unused)
        while (!writes_saved(ops.operations[count - 1])) --count;
      writer.forward(Keep::kAll, true, count);
      break;
    }
    case TapeStep::kBackward:
      writer.backward();
      break;
    case TapeStep::kLoss:
      writer.loss(true);
      break;
    case TapeStep::kEvaluateLoss:
      writer.loss(false);
      break;
  }
  return writer.finish();
}

}  // namespace fivefold
