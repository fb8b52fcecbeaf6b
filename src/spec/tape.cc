// Tapes of the operations in operations.h; see Note [Buffer rules] there.
#include <algorithm>
#include <map>
#include <set>

#include "spec/operations.h"
#include "spec/tape_exchanges.h"

namespace fivefold {
namespace {

class TapeWriter {
 public:
  TapeWriter(const UnitOperations& ops, const TapeShape& shape) : ops_(ops), shape_(shape) {}

  int64_t slot_bytes(int slot) const {
    const Slot& s = ops_.slots[static_cast<size_t>(slot)];
    const int64_t tokens = s.split_by_tp ? shape_.tokens : shape_.stream_tokens();
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
  enum class Part : uint8_t { kBoth, kInput };
  void backward(Part part);
  void backward_weight();
  void loss(bool with_backward);

 private:
  void forward_products(const Operation& op);
  // The buffer of a weight in 4 bits, or rounded to fp8, for one product with it.
  void dequantized(const Operation& op);
  // The product of the output's gradient and the weight.
  void input_gradient(const Operation& op) {
    if (shape_.fp8) rounded(op.output, kFp8GradientId);
    dequantized(op);
    if (shape_.fp8) release(kFp8GradientId);
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
    low_rank(op, kLowRankId);
    release(kLowRankId);
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

void TapeWriter::dequantized(const Operation& op) {
  if (!op.four_bit && !shape_.fp8) return;
  allocate(kDequantizedId, op.weight_numel * dtype_bytes(shape_.compute), Account::kUnshardedParams);
  release(kDequantizedId, Account::kUnshardedParams);
}

// The gathered input of a column linear; the partial sum of a row linear or of the embedding.
void TapeWriter::forward_products(const Operation& op) {
  const bool gathers = sequence_parallel() && (op.cut != LinearCut::kNone || op.kind == OperationKind::kEmbedding);
  if (gathers) allocate_gathered(kGatheredId, op.cut == LinearCut::kColumn ? op.input : op.output);
  const bool rounds = shape_.fp8 && op.kind == OperationKind::kLinear;
  if (rounds) rounded(op.input, kFp8InputId);
  if (op.kind == OperationKind::kLinear) dequantized(op);
  if (rounds) release(kFp8InputId);
  if (op.adapter.exists()) {
    low_rank(op, kLowRankId);
    release(kLowRankId);
  }
  if (gathers) release_gathered(kGatheredId);
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

// The input that a linear rebuilds, unless a rebuild made it.
void TapeWriter::allocate_rebuilt(int slot) {
  if (rebuilt_.erase(slot) == 0) allocate_slot(slot);
}

bool TapeWriter::is_kept(int id) const {
  return std::any_of(kept_.begin(), kept_.end(), [id](const Kept& kept) { return kept.id == id; });
}

void TapeWriter::keep_norm_gradient(int parameter, int64_t width) {
  if (!defers() || parameter < 0) return;
  allocate(kKeptVectorId + parameter, width * 4);
  keep(kKeptVectorId + parameter);
}

void TapeWriter::backward_column_linear(const Operation& op) {
  const bool rebuilt = lifetime(op.input) == Lifetime::kRebuilt && (op.needs_input() || rebuilt_.contains(op.input));
  const bool gathers = sequence_parallel() && !defers() && op.needs_input();
  if (rebuilt) allocate_rebuilt(op.input);
  if (gathers) allocate_gathered(kGatheredId, op.input);
  if (sequence_parallel()) allocate_gathered(kPartialSumId, op.input);
  allocate(kGradientId + op.input, slot_bytes(op.input));
  gradient_[op.input] = kGradientId + op.input;
  input_gradient(op);
  if (op.adapter.exists()) low_rank(op, kLowRankGradientId);
  if (!defers()) weight_gradients(op);
  if (op.adapter.exists()) release(kLowRankGradientId);
  if (sequence_parallel()) release_gathered(kPartialSumId);
  if (defers() && op.needs_input()) {
    keep(op.input);
    keep(gradient_.at(op.output));
    return;
  }
  if (gathers) release_gathered(kGatheredId);
  if (rebuilt) release_slot(op.input);
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
  if (op.adapter.exists()) low_rank(op, kLowRankGradientId);
  if (!defers() && !of_activation) weight_gradients(op);
  // The gradient takes the place of a rebuilt input, unless both are needed.
  const bool apart = !rebuilt || (defers() && of_norm);
  if (apart) allocate(kGradientId + op.input, slot_bytes(op.input));
  gradient_[op.input] = apart ? kGradientId + op.input : op.input;
  input_gradient(op);
  if (!defers() && of_activation) weight_gradients(op);
  if (op.adapter.exists()) release(kLowRankGradientId);
  if (!defers() || !op.needs_input()) {
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

// In the order in which the first part kept things; column linears gather their input again.
void TapeWriter::backward_weight() {
  backward(Part::kInput);
  events_.clear();
  for (size_t i = ops_.operations.size(); i-- > 0;) {
    const Operation& op = ops_.operations[i];
    if (op.kind != OperationKind::kLinear || !op.needs_input()) continue;
    const bool gathers = op.cut == LinearCut::kColumn && sequence_parallel();
    if (gathers) allocate_gathered(kGatheredId, op.input);
    if (op.adapter.exists()) low_rank(op, kLowRankGradientId);
    weight_gradients(op);
    if (op.adapter.exists()) release(kLowRankGradientId);
    if (gathers) release_gathered(kGatheredId);
  }
  for (const Kept& kept : kept_) release(kept.id, kept.account);
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
