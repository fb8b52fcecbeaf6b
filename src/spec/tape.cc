// Tapes of the operations in operations.h; see Note [Buffer rules] there.
#include <algorithm>

#include "spec/tape_exchanges.h"
#include "spec/tape_writer.h"

namespace fivefold {
namespace {

std::vector<int> written(const Operation& op) {
  std::vector<int> slots = op.extra;
  if (op.output >= 0 && op.output != op.input) slots.push_back(op.output);
  return slots;
}

bool reads(const Operation& op, int slot) { return op.input == slot || op.residual == slot; }

}  // namespace

void TapeWriter::forward(Keep keep, bool input_is_live_after, size_t num_operations) {
  for (size_t i = 0; i < num_operations; ++i) {
    const Operation& op = ops_.operations[i];
    for (const int slot : written(op)) allocate_slot(slot);
    measure_rows(op);
    forward_products(op);
    if (op.kind == OperationKind::kAttention) append(forward_exchanges(ops_, op, shape_));
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

// Note [Rebuilds] in spec/rebuild.h: what is written is there afterwards; of a norm its statistics were saved.
void TapeWriter::rebuild_before(size_t operation) {
  for (const Rebuild::Again& again : ops_.rebuilt_before(operation)) {
    const Operation& op = ops_.operations[static_cast<size_t>(again.operation)];
    for (const int slot : written(op)) {
      const Lifetime of_slot = lifetime(slot);
      if (of_slot != Lifetime::kDropped && of_slot != Lifetime::kRebuilt) continue;
      allocate_slot(slot);
      if (of_slot == Lifetime::kRebuilt) rebuilt_.insert(slot);
    }
    forward_products(op);
    if (op.kind != OperationKind::kAttention) continue;
    append(forward_exchanges(ops_, op, shape_, again.part));
    if (rebuilt_.erase(op.input) > 0) release_slot(op.input);
  }
}

bool TapeWriter::is_kept(int id) const {
  return std::any_of(kept_.begin(), kept_.end(), [id](const Kept& kept) { return kept.id == id; });
}

void TapeWriter::keep_norm_gradient(int parameter, int64_t width) {
  if (!defers() || parameter < 0) return;
  allocate(kKeptVectorId + parameter, width * 4);
  keep(kKeptVectorId + parameter);
}

void TapeWriter::backward(Part part) {
  part_ = part;
  for (size_t i = ops_.operations.size(); i-- > 0;) {
    const Operation& op = ops_.operations[i];
    rebuild_before(i);
    switch (op.kind) {
      case OperationKind::kLinear:
        backward_linear(op);
        break;
      case OperationKind::kGatedActivation:
      case OperationKind::kActivation:
        if (!is_kept(op.output)) release(gradient_.at(op.output));
        gradient_[op.input] = op.input;
        break;
      case OperationKind::kQkNorm:
        // As wide as a head.
        for (const int parameter : {op.weight, op.weight2})
          if (op.trains) keep_norm_gradient(parameter, width(op.extra[0]) / width(op.extra[1]));
        for (const int slot : op.extra) release_slot(slot);
        break;
      case OperationKind::kRope:
        break;
      case OperationKind::kAttention:
        allocate(kGradientId + op.input, slot_bytes(op.input));
        gradient_[op.input] = kGradientId + op.input;
        append(backward_exchanges(ops_, op, shape_));
        release(gradient_.at(op.output));
        if (!is_kept(op.output)) release_slot(op.output);
        for (const int slot : op.extra) release_slot(slot);
        if (was_kept(op.input)) release_slot(op.input);
        break;
      case OperationKind::kNorm:
        for (const int parameter : {op.weight, op.bias})
          if (op.trains) keep_norm_gradient(parameter, width(op.input));
        release(gradient_.at(op.output));
        for (const int slot : op.extra) release_slot(slot);
        release_slot(op.input);
        break;
      case OperationKind::kAddNorm:
        allocate(kGradientId + op.input, slot_bytes(op.input));
        gradient_[op.input] = kGradientId + op.input;
        for (const int slot : op.extra) release_slot(slot);
        if (lifetime(op.input) == Lifetime::kSaved && !is_kept(op.input)) release_slot(op.input);
        break;
      case OperationKind::kBlock:
        allocate(op.input, slot_bytes(op.input));
        gradient_[op.input] = op.input;
        release(gradient_.at(op.output));
        for (const int slot : op.extra) release_slot(slot);
        if (lifetime(op.output) == Lifetime::kSaved && !is_kept(op.output)) release_slot(op.output);
        break;
      case OperationKind::kEmbedding:
        if (op.trains) forward_products(op);  // its output's gradient, gathered
        release(kStreamGradientId, Account::kActivations, Owner::kMicrobatch);
        break;
      case OperationKind::kLoss:
        FIVEFOLD_CHECK(false);
    }
  }
}

// With tensor parallelism the statistics of each chunk's softmax travel: those of this rank's columns, and all ranks'.
void TapeWriter::loss(bool with_backward) {
  const int64_t element = dtype_bytes(shape_.compute), h = ops_.slots[0].width;
  const int64_t chunk = std::min(shape_.loss_chunk, shape_.tokens);
  const Operation& norm = ops_.operations[0];
  for (const int slot : norm.extra) allocate_slot(slot);
  if (with_backward)
    allocate(kStreamGradientId, shape_.stream_tokens() * h * element, Account::kActivations, Owner::kMicrobatch);
  const int normed = kTemporaryId, logits = ops_.output, losses = kTemporaryId + 1;
  const int statistics = kTemporaryId + 2, all_statistics = kTemporaryId + 3;
  if (sequence_parallel()) {
    allocate(normed, shape_.stream_tokens() * h * element);
    allocate_gathered(kGatheredId, 0);
    release(normed);
    if (with_backward) allocate_gathered(kPartialSumId, 0);
  } else {
    allocate(normed, chunk * h * element);
  }
  allocate(logits, chunk * ops_.slots[static_cast<size_t>(logits)].width * element, Account::kLogits);
  allocate(losses, chunk * 4, Account::kLogits);
  if (tensor_parallel()) {
    allocate(statistics, chunk * kLossStatisticsBytes, Account::kCommBuffers);
    allocate(all_statistics, chunk * kLossStatisticsBytes * shape_.split.size, Account::kCommBuffers);
    release(statistics, Account::kCommBuffers);
    release(all_statistics, Account::kCommBuffers);
  }
  release(logits, Account::kLogits);
  release(losses, Account::kLogits);
  if (sequence_parallel()) {
    release_gathered(kGatheredId);
    if (with_backward) release_gathered(kPartialSumId);
  } else {
    release(normed);
  }
  for (const int slot : norm.extra) release_slot(slot);
  release_slot(0);
}

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
        return std::any_of(slots.begin(), slots.end(), [&](int slot) {
          return writer.lifetime(slot) == Lifetime::kSaved && !ops.slots[static_cast<size_t>(slot)].per_feature;
        });
      };
      if (options.output_unused)
        while (!writes_saved(ops.operations[count - 1])) --count;
      writer.forward(Keep::kAll, true, count);
      // The last operation may write both: statistics of a norm behind the sublayer, and the output that is there
      // already.
      if (options.output_unused && count == ops.operations.size()) writer.release_slot(ops.output);
      // Of the linears that do not run again the lengths of the rows are missing.
      for (; count < ops.operations.size(); ++count) {
        for (const int slot : ops.operations[count].extra) writer.allocate_slot(slot);
        writer.measure_rows(ops.operations[count]);
      }
      break;
    }
    case TapeStep::kBackward:
      writer.backward(TapeWriter::Part::kBoth);
      break;
    case TapeStep::kBackwardInput:
      writer.backward(TapeWriter::Part::kInput);
      break;
    case TapeStep::kBackwardWeight:
      writer.backward_weight();
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
