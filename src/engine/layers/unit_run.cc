#include "engine/layers/unit_run.h"

#include <algorithm>

#include "base/integer.h"

namespace fivefold {

UnitRun::UnitRun(const ModelContext& context, const UnitBuffers& buffers, Microbatch& microbatch, int unit)
    : context_(context),
      buffers_(buffers),
      microbatch_(microbatch),
      operations_(context.operations[static_cast<size_t>(unit)]),
      unit_(unit) {
  if (context.clock != nullptr) context.clock->start();
}

void UnitRun::lap(const Operation& op, Pass pass, Part part) const {
  if (context_.clock == nullptr) return;
  context_.clock->lap(unit_, static_cast<int>(&op - operations_.operations.data()), pass, part);
}

at::Tensor& UnitRun::slot(int index) {
  switch (slot_spec(index).lifetime) {
    case Lifetime::kInput:
      return microbatch_.stream[static_cast<size_t>(unit_) - 1];
    case Lifetime::kOutput:
      return microbatch_.stream[static_cast<size_t>(unit_)];
    case Lifetime::kSaved:
    case Lifetime::kRebuilt:
    case Lifetime::kDropped:
      break;
  }
  auto& slots = microbatch_.slots[static_cast<size_t>(unit_)];
  if (slots.empty()) slots.resize(operations_.slots.size());
  return slots[static_cast<size_t>(index)];
}

at::Tensor UnitRun::allocate_like_slot(int index) const {
  const Slot& spec = slot_spec(index);
  const DType dtype = spec.fp32 ? DType::kFloat32 : context_.compute;
  if (spec.per_feature) return allocate(Account::kActivations, {spec.width}, dtype);
  const int64_t tokens = spec.split_by_tp ? microbatch_.tokens : stream_tokens();
  return allocate(Account::kActivations, {tokens, spec.width}, dtype);
}

int64_t UnitRun::stream_tokens() const {
  return sequence_parallel() ? div_exact(microbatch_.tokens, context_.tensor->split().size) : microbatch_.tokens;
}

at::Tensor& UnitRun::allocate_slot(int index) { return slot(index) = allocate_like_slot(index); }

const LayerSpec& UnitRun::layer() const { return context_.model->layers[static_cast<size_t>(buffers_.unit().layer)]; }

ops::HeadGeometry UnitRun::heads() const {
  const MixerSpec& mixer = layer().mixer;
  return {mixer.num_heads, mixer.num_kv_heads, mixer.head_dim};
}

std::span<const int32_t> UnitRun::documents() const {
  return {elements<int32_t>(microbatch_.cu_seqlens), static_cast<size_t>(microbatch_.num_documents) + 1};
}

ContextParallel::Kept UnitRun::kept_heads(const Operation& op) {
  if (op.extra.size() == 1) return {};
  const int64_t rows = microbatch_.tokens * context_.context->degree();
  return {slot(op.extra[1]).view({rows, -1}), slot(op.extra[2]).view({rows, -1})};
}

void UnitRun::run_attention(const Operation& op, RebuildPart part) {
  if (context_.context != nullptr)
    return context_.context->forward(slot(op.input), heads(), microbatch_.context, slot(op.output), slot(op.extra[0]),
                                     kept_heads(op), part, context_.threads);
  ops::attention_forward(slot(op.input), heads(), documents(), slot(op.output), slot(op.extra[0]), context_.threads);
}

ops::NormTensors UnitRun::norm_tensors(const Operation& op) {
  ops::NormTensors norm;
  norm.spec = operations_.kind == UnitKind::kHead ? &context_.model->final_norm : &layer().norm;
  norm.weight = weight(op.weight);
  norm.bias = optional_weight(op.bias);
  norm.rstd = slot(op.extra[0]);
  if (op.extra.size() > 1) norm.mean = slot(op.extra[1]);
  return norm;
}

void UnitRun::execute(const Operation& op) {
  const int threads = context_.threads;
  // What was kept of an operation that runs again is used again.
  const bool measures = op.adapter.scales() && !slot(op.adapter.row_lengths).defined();
  for (const int extra : op.extra)
    if (!slot(extra).defined()) allocate_slot(extra);
  if (op.output != op.input) allocate_slot(op.output);
  if (measures) measure_rows(op);
  switch (op.kind) {
    case OperationKind::kEmbedding:
      forward_embedding(op);
      return;
    case OperationKind::kNorm:
      ops::norm_forward(slot(op.input), norm_tensors(op), ops::NormStatistics::kCompute, slot(op.output), threads);
      return;
    case OperationKind::kLinear:
      if (op.cut == LinearCut::kColumn) return forward_column_linear(op);
      if (op.cut == LinearCut::kRow) return forward_row_linear(op);
      linear_product(op, slot(op.input), optional_weight(op.bias), op.residual < 0 ? at::Tensor() : slot(op.residual),
                     slot(op.output));
      return;
    case OperationKind::kQkNorm:
      ops::qk_norm_forward(slot(op.input), heads(), layer().norm.eps, weight(op.weight), weight(op.weight2),
                           slot(op.extra[0]), slot(op.extra[1]), threads);
      return;
    case OperationKind::kRope: {
      const RopeTables& tables = context_.rope[static_cast<size_t>(buffers_.unit().layer)];
      ops::rope(slot(op.input), heads(), tables.cos, tables.sin, microbatch_.positions, ops::RopeTurn::kForward,
                threads);
      return;
    }
    case OperationKind::kAttention:
      run_attention(op, RebuildPart::kWhole);
      return;
    case OperationKind::kGatedActivation:
      ops::gated_activation_forward(slot(op.input), slot(op.output), threads);
      return;
    case OperationKind::kActivation:
      ops::activation_forward(layer().mlp.activation, slot(op.input), slot(op.output), threads);
      return;
    case OperationKind::kAddNorm:
    case OperationKind::kBlock:
    case OperationKind::kLoss:
      break;
  }
  FIVEFOLD_CHECK(false, "the validation rules let operation " + op.name + " through");
}

void UnitRun::run_forward(Keep keep, size_t num_operations) {
  // How many operations still read each slot.
  std::vector<int> readers(operations_.slots.size(), 0);
  for (const Operation& op : operations_.operations)
    for (const int read : {op.input, op.residual})
      if (read >= 0) ++readers[static_cast<size_t>(read)];
  const auto drop_unless_kept = [&](int index) {
    const Lifetime lifetime = slot_spec(index).lifetime;
    const bool kept = lifetime == Lifetime::kOutput || (lifetime == Lifetime::kInput && keep != Keep::kNothing) ||
                      (lifetime == Lifetime::kSaved && keep == Keep::kAll);
    if (readers[static_cast<size_t>(index)] == 0 && !kept) slot(index).reset();
  };
  for (size_t i = 0; i < num_operations; ++i) {
    const Operation& op = operations_.operations[i];
    execute(op);
    lap(op, Pass::kForward, op.kind == OperationKind::kLinear ? Part::kMatrix : Part::kRest);
    for (const int read : {op.input, op.residual}) {
      if (read < 0) continue;
      --readers[static_cast<size_t>(read)];
      drop_unless_kept(read);
    }
    for (const int written : op.extra) drop_unless_kept(written);
  }
}

void UnitRun::forward(Keep keep) { run_forward(keep, operations_.operations.size()); }

void UnitRun::recompute(bool output_unused) {
  size_t count = operations_.operations.size();
  if (output_unused) {
    // Stop after the last operation that writes something backward reads.
    const auto writes_saved = [&](const Operation& op) {
      return (!op.extra.empty() && !op.adapter.scales()) ||
             (op.output != op.input && slot_spec(op.output).lifetime == Lifetime::kSaved);
    };
    while (!writes_saved(operations_.operations[count - 1])) --count;
  }
  run_forward(Keep::kAll, count);
  for (; count < operations_.operations.size(); ++count) {
    const Operation& op = operations_.operations[count];
    if (!op.adapter.scales()) continue;
    allocate_slot(op.adapter.row_lengths);
    measure_rows(op);
    lap(op, Pass::kForward, Part::kRest);
  }
}

double UnitRun::loss(const OutputMatrix& output, float scale, bool accumulate) {
  const Operation& norm_op = operations_.operations[0];
  const Operation& loss_op = operations_.operations[1];
  const Pass pass = scale > 0 ? Pass::kBackward : Pass::kForward;
  const int64_t tokens = microbatch_.tokens, hidden = context_.model->hidden;
  const TensorParallel* tensor = context_.tensor;
  const int64_t chunk = std::min(context_.loss_chunk, tokens);
  const bool with_backward = scale > 0;
  const at::Tensor& x = slot(0);
  for (const int extra : norm_op.extra) allocate_slot(extra);
  const ops::NormTensors norm = norm_tensors(norm_op);
  at::Tensor& dx = microbatch_.stream_gradient;
  if (with_backward) dx = allocate(Account::kActivations, {stream_tokens(), hidden}, context_.compute);

  double loss_sum = 0;
  {
    // Normed input, a chunk at a time; under sequence parallelism of all tokens, gathered. The latter's gradient is of
    // all tokens too, before it is scattered.
    at::Tensor normed =
        allocate(Account::kActivations, {sequence_parallel() ? stream_tokens() : chunk, hidden}, context_.compute);
    at::Tensor gathered, dgathered, statistics, all_statistics;
    if (sequence_parallel()) {
      ops::norm_forward(x, norm, ops::NormStatistics::kCompute, normed, context_.threads);
      lap(norm_op, Pass::kForward);
      gathered = allocate_gathered(0);
      tensor->gather(normed, gathered, Purpose::kActivations);
      normed.reset();
      if (with_backward) dgathered = allocate_gathered(0);
    }
    const at::Tensor logits = allocate(Account::kLogits, {chunk, output.weight.size(0)}, context_.compute);
    const at::Tensor losses = allocate(Account::kLogits, {chunk}, DType::kFloat32);
    if (tensor != nullptr) {
      statistics = allocate(Account::kCommBuffers, {chunk, 2}, DType::kFloat64);
      all_statistics = allocate(Account::kCommBuffers, {tensor->split().size, chunk, 2}, DType::kFloat64);
    }
    for (int64_t begin = 0; begin < tokens; begin += chunk) {
      const int64_t rows = std::min(chunk, tokens - begin);
      at::Tensor z = logits.narrow(0, 0, rows), l = losses.narrow(0, 0, rows);
      at::Tensor y = sequence_parallel() ? gathered.narrow(0, begin, rows) : normed.narrow(0, 0, rows);
      if (!sequence_parallel()) {
        ops::NormTensors part = norm;
        part.rstd = norm.rstd.narrow(0, begin, rows);
        if (norm.mean.defined()) part.mean = norm.mean.narrow(0, begin, rows);
        ops::norm_forward(x.narrow(0, begin, rows), part, ops::NormStatistics::kCompute, y, context_.threads);
        lap(norm_op, Pass::kForward);
      }
      ops::linear_forward(y, output.weight, at::Tensor(), at::Tensor(), z);
      lap(loss_op, pass, Part::kMatrix);
      loss_sum += chunk_loss(z, microbatch_.targets.narrow(0, begin, rows), statistics, all_statistics, l, scale);
      lap(loss_op, pass);
      if (!with_backward) continue;
      if (output.gradient.defined()) ops::linear_weight_grad(z, y, output.gradient, output.accumulate || begin > 0);
      at::Tensor dy = (sequence_parallel() ? dgathered : dx).narrow(0, begin, rows);
      ops::linear_input_grad(z, output.weight, dy);
      lap(loss_op, pass, Part::kMatrix);
    }
    if (with_backward && sequence_parallel())
      tensor->reduce_scatter(dgathered, dx, Purpose::kActivationGradients);
    else if (with_backward && tensor != nullptr)
      tensor->all_reduce(dx, Purpose::kActivationGradients);
  }
  if (with_backward)
    ops::norm_backward(x, norm, dx, ops::StreamGradient::kOverwrite, dx, optional_grad(norm_op, norm_op.weight),
                       optional_grad(norm_op, norm_op.bias), accumulate, context_.threads);
  lap(norm_op, Pass::kBackward);
  for (const int extra : norm_op.extra) slot(extra).reset();
  slot(0).reset();
  return loss_sum;
}

}  // namespace fivefold
