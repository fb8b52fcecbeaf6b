#include "planner/layer_traffic.h"

#include <algorithm>

#include "base/integer.h"
#include "planner/work.h"

namespace fivefold {
namespace {

class CallList {
 public:
  CallList(const UnitOperations& operations, const TapeShape& shape) : operations_(operations), shape_(shape) {}

  bool sequence_parallel() const { return shape_.split.sequence_parts() > 1; }

  int index_of(const Operation& op) const { return static_cast<int>(&op - operations_.operations.data()); }

  // Of a tensor of the residual stream's width.
  LayerCall& stream(CollectiveKind kind, Purpose purpose, int slot) {
    const int64_t width = operations_.slots[static_cast<size_t>(slot)].width;
    calls_.push_back({kind, purpose, GroupKind::kTp, shape_.tokens * width, dtype_bytes(shape_.compute)});
    return calls_.back();
  }
  // Behind one of the two products of a column linear's backward.
  void hidden_stream(CollectiveKind kind, Purpose purpose, const Operation& op) {
    LayerCall& call = stream(kind, purpose, op.input);
    call.operation = index_of(op);
    call.beside = 0.5;
    call.pass = Pass::kBackward;
  }
  void statistics(int64_t rows) {
    // fp64 numbers, of every rank.
    calls_.push_back({CollectiveKind::kAllGather, Purpose::kLoss, GroupKind::kTp,
                      shape_.split.size * rows * kLossStatisticsBytes / 8, 8});
  }

  // Under current fp8 scaling the ranks that have parts of a tensor share its largest magnitude.
  void scales(const Operation& op, int64_t numbers) {
    if (op.kind != OperationKind::kLinear || shape_.fp8 != Fp8Scaling::kCurrent) return;
    if (shape_.split.size > 1)
      calls_.push_back({CollectiveKind::kAllReduce, Purpose::kScales, GroupKind::kTp, numbers, 4});
    if (shape_.context.degree > 1)
      calls_.push_back({CollectiveKind::kAllReduce, Purpose::kScales, GroupKind::kCp, numbers, 4});
  }
  // DoRA: the squares of the lengths of a row linear's rows are summed over the ranks that have their columns.
  void row_lengths(const Operation& op) {
    if (!op.adapter.scales() || op.cut != LinearCut::kRow) return;
    const Slot& slot = operations_.slots[static_cast<size_t>(op.adapter.row_lengths)];
    calls_.push_back({CollectiveKind::kAllReduce, Purpose::kScales, GroupKind::kTp, slot.width, 4});
  }
  // DoRA: the product that its magnitudes' gradient is made of.
  void magnitude_gradient(const Operation& op) {
    if (op.adapter.scales()) scales(op, 2);
  }
  void forward(const Operation& op, RebuildPart part = RebuildPart::kWhole) {
    scales(op, 2);
    if (op.cut == LinearCut::kColumn && sequence_parallel())
      stream(CollectiveKind::kAllGather, Purpose::kActivations, op.input);
    const bool embeds = op.kind == OperationKind::kEmbedding && shape_.split.size > 1;
    if (op.cut == LinearCut::kRow || embeds)
      stream(sequence_parallel() ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce, Purpose::kActivations,
             op.output);
    if (op.kind == OperationKind::kAttention) attention(op, Pass::kForward, part);
  }
  void rebuild_before(const Operation& op) {
    for (const Rebuild::Again& again : operations_.rebuilt_before(static_cast<size_t>(index_of(op))))
      forward(operations_.operations[static_cast<size_t>(again.operation)], again.part);
  }
  void backward(const Operation& op) {
    backward_input_of(op);
    magnitude_gradient(op);
  }
  void backward_input_of(const Operation& op) {
    rebuild_before(op);
    scales(op, 1);
    if (op.cut == LinearCut::kColumn) {
      if (sequence_parallel() && op.needs_input()) hidden_stream(CollectiveKind::kAllGather, Purpose::kActivations, op);
      hidden_stream(sequence_parallel() ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce,
                    Purpose::kActivationGradients, op);
    }
    if (op.kind == OperationKind::kAttention) attention(op, Pass::kBackward, RebuildPart::kWhole);
    const bool row = op.cut == LinearCut::kRow || (op.kind == OperationKind::kEmbedding && op.trains);
    if (row && sequence_parallel()) stream(CollectiveKind::kAllGather, Purpose::kActivationGradients, op.output);
  }
  void attention(const Operation& op, Pass pass, RebuildPart part) {
    const bool backward = pass == Pass::kBackward;
    const int64_t c = shape_.context.degree, t = shape_.tokens, element = dtype_bytes(shape_.compute);
    if (c == 1) return;
    const auto width = [&](int slot) { return operations_.slots[static_cast<size_t>(slot)].width; };
    const int64_t q = width(op.output), kv = width(op.input) - q;
    const auto add = [&](CollectiveKind kind, Purpose purpose, int64_t elements, int64_t bytes) {
      calls_.push_back({kind, purpose, GroupKind::kCp, elements, bytes});
    };
    switch (shape_.context.kind) {
      case CpKind::kRing:
        return ring(op, t * kv, pass);
      case CpKind::kAllGather:
        add(CollectiveKind::kAllGather, Purpose::kActivations, c * t * kv, element);
        if (backward) add(CollectiveKind::kReduceScatter, Purpose::kActivationGradients, c * t * kv, element);
        return;
      case CpKind::kUlysses: {
        const Purpose purpose = backward ? Purpose::kActivationGradients : Purpose::kActivations;
        if (part != RebuildPart::kAfterExchange)
          add(CollectiveKind::kAllToAll, purpose, t * width(op.extra[1]), element);
        if (part != RebuildPart::kExchange) add(CollectiveKind::kAllToAll, purpose, t * q, element);
        return;
      }
    }
  }
  // In each of c steps of computation the block of the next one travels, and in backward the gradient of the one
  // before; the last gradient's way home follows.
  void ring(const Operation& op, int64_t elements, Pass pass) {
    const int64_t c = shape_.context.degree;
    const bool backward = pass == Pass::kBackward;
    for (int64_t step = 0; step <= (backward ? c : c - 1); ++step) {
      const double beside = step < c ? 1.0 / static_cast<double>(c) : 0.0;
      bool joined = false;
      const auto pass_on = [&](Purpose purpose, int64_t bytes) {
        for (const CollectiveKind kind : {CollectiveKind::kSend, CollectiveKind::kRecv}) {
          calls_.push_back({kind, purpose, GroupKind::kCp, elements, bytes, index_of(op), beside, joined, pass});
          joined = true;
        }
      };
      if (step < c - 1) pass_on(Purpose::kActivations, dtype_bytes(shape_.compute));
      if (backward && step > 0) pass_on(Purpose::kActivationGradients, 4);
    }
  }
  // The two parts of a backward: the gather of a column linear's input belongs to the second.
  void backward_input(const Operation& op) {
    if (op.cut != LinearCut::kColumn) return backward_input_of(op);
    rebuild_before(op);
    scales(op, 1);
    stream(sequence_parallel() ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce,
           Purpose::kActivationGradients, op.input);
  }
  void backward_weight(const Operation& op) {
    magnitude_gradient(op);
    if (op.cut == LinearCut::kColumn && sequence_parallel() && op.needs_input())
      stream(CollectiveKind::kAllGather, Purpose::kActivations, op.input);
  }
  void loss(bool with_backward) {
    if (shape_.split.size == 1) return;
    if (sequence_parallel()) stream(CollectiveKind::kAllGather, Purpose::kActivations, 0);
    const int64_t chunk = std::min(shape_.loss_chunk, shape_.tokens);
    for (int64_t begin = 0; begin < shape_.tokens; begin += chunk) statistics(std::min(chunk, shape_.tokens - begin));
    if (with_backward)
      stream(sequence_parallel() ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce,
             Purpose::kActivationGradients, 0);
  }
  std::vector<LayerCall> finish() { return std::move(calls_); }

 private:
  const UnitOperations& operations_;
  const TapeShape& shape_;
  std::vector<LayerCall> calls_;
};

}  // namespace

int64_t LayerCall::bytes_sent(int64_t ranks) const {
  if (kind == CollectiveKind::kSend) return elements * element_bytes;
  if (kind == CollectiveKind::kRecv) return 0;
  const int64_t chunk = div_ceil(elements, ranks) * element_bytes;
  return (kind == CollectiveKind::kAllReduce ? 2 : 1) * (ranks - 1) * chunk;
}

std::vector<LayerCall> layer_calls(const UnitOperations& operations, TapeStep step, const TapeShape& shape,
                                   const TapeOptions& options) {
  if (shape.split.size == 1 && shape.context.degree == 1) return {};
  CallList calls(operations, shape);
  const auto& list = operations.operations;
  switch (step) {
    case TapeStep::kForward:
      for (const Operation& op : list) {
        calls.row_lengths(op);
        calls.forward(op);
      }
      break;
    case TapeStep::kRecompute:
      for (int i = 0; i < static_cast<int>(list.size()); ++i) {
        calls.row_lengths(list[static_cast<size_t>(i)]);
        if (i < num_recomputed_operations(operations, options.output_unused))
          calls.forward(list[static_cast<size_t>(i)]);
      }
      break;
    case TapeStep::kBackward:
      for (auto op = list.rbegin(); op != list.rend(); ++op) calls.backward(*op);
      break;
    case TapeStep::kBackwardInput:
      for (auto op = list.rbegin(); op != list.rend(); ++op) calls.backward_input(*op);
      break;
    case TapeStep::kBackwardWeight:
      for (auto op = list.rbegin(); op != list.rend(); ++op) calls.backward_weight(*op);
      break;
    case TapeStep::kLoss:
    case TapeStep::kEvaluateLoss:
      calls.loss(step == TapeStep::kLoss);
      break;
  }
  return calls.finish();
}

}  // namespace fivefold
