// What a unit's backward makes again (Note [Rebuilds] in spec/rebuild.h): dropped tensors, and the outputs of norms.
#include "engine/layers/unit_run.h"

namespace fivefold {

void UnitRun::rebuild_before(size_t operation) {
  for (const Rebuild::Again& again : operations_.rebuilt_before(operation)) {
    const Operation& op = operations_.operations[static_cast<size_t>(again.operation)];
    switch (op.kind) {
      case OperationKind::kNorm:
        rebuild_norm(op);
        continue;
      case OperationKind::kAttention:
        rebuild_attention(op, again.part);
        break;
      case OperationKind::kLinear:
      case OperationKind::kQkNorm:
      case OperationKind::kRope:
        execute(op);
        break;
      case OperationKind::kEmbedding:
      case OperationKind::kGatedActivation:
      case OperationKind::kActivation:
      case OperationKind::kAddNorm:
      case OperationKind::kBlock:
      case OperationKind::kLoss:
        FIVEFOLD_CHECK(false, "operation " + op.name + " cannot run again");
    }
    lap(op, Pass::kBackward, op.kind == OperationKind::kLinear ? Part::kMatrix : Part::kRest);
  }
}

void UnitRun::rebuild_norm(const Operation& op) {
  at::Tensor& output = allocate_slot(op.output);
  ops::norm_forward(slot(op.input), norm_tensors(op), ops::NormStatistics::kReuse, output, context_.threads);
  lap(op, Pass::kBackward);
}

void UnitRun::rebuild_input(const Operation& linear) {
  if (slot(linear.input).defined()) return;
  const Operation& writer = writer_of(linear.input);
  FIVEFOLD_CHECK(writer.kind == OperationKind::kNorm, "operation " + writer.name + " cannot be rebuilt");
  rebuild_norm(writer);
}

// Under Ulysses qkv serves the exchange only.
void UnitRun::rebuild_attention(const Operation& op, RebuildPart part) {
  const auto is_dropped = [&](int index) { return slot_spec(index).lifetime == Lifetime::kDropped; };
  for (const int extra : op.extra)
    if (is_dropped(extra)) allocate_slot(extra);
  if (is_dropped(op.output)) allocate_slot(op.output);
  run_attention(op, part);
  if (slot_spec(op.input).lifetime == Lifetime::kRebuilt) slot(op.input).reset();
}

}  // namespace fivefold
