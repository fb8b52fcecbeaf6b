#include "spec/rebuild.h"

#include <algorithm>

namespace fivefold {
namespace {

class RebuildPlan {
 public:
  explicit RebuildPlan(UnitOperations& operations) : operations_(operations), there_(operations.slots.size(), false) {
    for (size_t slot = 0; slot < operations.slots.size(); ++slot) {
      const Lifetime lifetime = operations.slots[slot].lifetime;
      there_[slot] = lifetime == Lifetime::kInput || lifetime == Lifetime::kSaved;
    }
  }

  // Backward runs the operations in reverse.
  void plan() {
    for (size_t i = operations_.operations.size(); i-- > 0;) {
      again_.assign(operations_.operations.size(), false);
      for (const int slot : read_backward(operations_.operations[i])) need(slot);
      Rebuild rebuild{.before = static_cast<int>(i), .operations = {}};
      for (size_t j = 0; j < again_.size(); ++j)
        if (again_[j]) rebuild.operations.push_back({static_cast<int>(j), part(operations_.operations[j])});
      if (!rebuild.operations.empty()) operations_.rebuilds.push_back(std::move(rebuild));
    }
  }

 private:
  bool is_dropped(int slot) const {
    return slot >= 0 && operations_.slots[static_cast<size_t>(slot)].lifetime == Lifetime::kDropped;
  }
  // Dropped slots that the operation's backward reads.
  std::vector<int> read_backward(const Operation& op) const {
    std::vector<int> slots = op.extra;
    const bool reads_input =
        op.kind == OperationKind::kAttention || (op.kind == OperationKind::kLinear && op.needs_input());
    if (reads_input) slots.push_back(op.input);
    if (op.kind == OperationKind::kAttention) slots.push_back(op.output);
    // A linear behind an activation does the activation's backward with its own.
    if (op.kind == OperationKind::kLinear)
      for (const Operation& writer : operations_.operations)
        if (writer.output == op.input &&
            (writer.kind == OperationKind::kActivation || writer.kind == OperationKind::kGatedActivation))
          slots.push_back(writer.input);
    std::erase_if(slots, [&](int slot) { return !is_dropped(slot); });
    return slots;
  }
  void need(int slot) {
    if (there_[static_cast<size_t>(slot)]) return;
    there_[static_cast<size_t>(slot)] = true;
    for (size_t i = 0; i < operations_.operations.size(); ++i) {
      const Operation& op = operations_.operations[i];
      const bool writes = op.output == slot || std::find(op.extra.begin(), op.extra.end(), slot) != op.extra.end();
      if (!writes || again_[i]) continue;
      again_[i] = true;
      for (const int written : op.extra) there_[static_cast<size_t>(written)] = true;
      if (part(op) != RebuildPart::kAfterExchange) need(op.input);
    }
  }
  // Of attention under Ulysses extra[1] is what the exchange brought.
  RebuildPart part(const Operation& op) const {
    if (op.kind != OperationKind::kAttention || op.extra.size() == 1) return RebuildPart::kWhole;
    if (!is_dropped(op.extra[1])) return RebuildPart::kAfterExchange;
    return is_dropped(op.output) ? RebuildPart::kWhole : RebuildPart::kExchange;
  }

  UnitOperations& operations_;
  std::vector<bool> there_, again_;  // slots; operations
};

}  // namespace

void drop_tensors(const DroppedTensors& dropped, UnitOperations& operations) {
  bool any = false;
  for (Slot& slot : operations.slots) {
    if (!slot.name_to_drop || !dropped.has(*slot.name_to_drop) || slot.lifetime != Lifetime::kSaved) continue;
    slot.lifetime = Lifetime::kDropped;
    any = true;
  }
  if (any) RebuildPlan(operations).plan();
}

}  // namespace fivefold
