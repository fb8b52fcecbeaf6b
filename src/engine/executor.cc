#include "engine/executor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/integer.h"
#include "base/philox.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"

namespace fivefold {
namespace {

at::Tensor int_tensor(const std::vector<int32_t>& values, int64_t capacity) {
  FIVEFOLD_CHECK(static_cast<int64_t>(values.size()) <= capacity);
  at::Tensor tensor = allocate(Account::kData, {capacity}, DType::kInt32);
  std::memcpy(tensor.data_ptr(), values.data(), values.size() * sizeof(int32_t));
  return tensor;
}

}  // namespace

TrainingExecutor::TrainingExecutor(const ModelSpec& model, const Inventory& inventory, const ExecutorOptions& options,
                                   const TensorParallel* tensor, const ContextParallel* context)
    : options_(options) {
  FIVEFOLD_CHECK((tensor != nullptr) == (options.split.size > 1));
  context_.model = &model;
  context_.inventory = &inventory;
  context_.compute = options.sharding.compute;
  context_.loss_chunk = options.loss_chunk;
  context_.threads = options.threads;
  context_.seed = options.seed;
  context_.fp8 = options.fp8;
  if (options.fp8 == Fp8Scaling::kDelayed) {
    fp8_history_ = std::make_unique<Fp8History>(inventory.num_units(), options.fp8_history);
    context_.fp8_history = fp8_history_.get();
  }
  context_.tensor = tensor;
  context_.context = context;
  const ParameterEntry& tokens = inventory.units[0].parameters[0];
  context_.vocabulary_rows = tokens.slices.front().rows;
  if (tensor != nullptr)
    context_.vocabulary = {.first = tokens.slices.front().whole_row, .whole = tokens.whole_shape[0]};
  for (int unit = 0; unit < inventory.num_units(); ++unit) {
    context_.operations.push_back(
        unit_operations(model, inventory, unit, options.split, options.context, options.dropped));
    const Unit& spec = inventory.units[static_cast<size_t>(unit)];
    buffers_.push_back(options.stages.holds(unit) ? std::make_unique<UnitBuffers>(spec, options.sharding, options.shard,
                                                                                  options.optimizer_states)
                                                  : nullptr);
    // Of two copies of a tied embedding the one beside the embedding's lookup counts.
    const bool counts = holds(unit) && !options.stages.holds_copy(unit);
    counted_.push_back(counts ? in_shard(spec, counted_in_norm(spec)) : std::vector<PartialRange>());
  }
  context_.rope = rope_tables(model, options.sequence);
}

Microbatch TrainingExecutor::load(const MicrobatchTokens& tokens) const {
  Microbatch microbatch;
  microbatch.tokens = tokens.rows * tokens.sequence;
  const auto count = static_cast<size_t>(microbatch.tokens);
  FIVEFOLD_CHECK(tokens.input_ids.size() == count && tokens.targets.size() == count &&
                 tokens.positions.size() == count);
  microbatch.valid_tokens =
      std::count_if(tokens.targets.begin(), tokens.targets.end(), [](int32_t t) { return t >= 0; });
  microbatch.input_ids = int_tensor(tokens.input_ids, microbatch.tokens);
  microbatch.targets = int_tensor(tokens.targets, microbatch.tokens);
  microbatch.positions = int_tensor(tokens.positions, microbatch.tokens);
  microbatch.num_documents = static_cast<int64_t>(tokens.cu_seqlens.size()) - 1;
  microbatch.cu_seqlens = int_tensor(tokens.cu_seqlens, options_.max_documents + 1);
  FIVEFOLD_CHECK(tokens.numbers.empty() || tokens.numbers.size() == count);
  microbatch.token_numbers = tokens.numbers;
  microbatch.stream.resize(buffers_.size());
  microbatch.slots.resize(buffers_.size());
  microbatch.kept.resize(buffers_.size());
  microbatch.fp8_amax.resize(buffers_.size());
  return microbatch;
}

void TrainingExecutor::load_step(const std::vector<MicrobatchTokens>& microbatches,
                                 std::vector<ContextSegments> segments) {
  FIVEFOLD_CHECK(segments.size() == (context_.context != nullptr ? microbatches.size() : 0));
  microbatches_.clear();
  for (const MicrobatchTokens& tokens : microbatches) microbatches_.push_back(load(tokens));
  for (size_t i = 0; i < segments.size(); ++i) microbatches_[i].context = std::move(segments[i]);
  loss_sum_ = 0;
}

UnitRun TrainingExecutor::run(int unit, int microbatch) {
  return UnitRun(context_, buffers(unit), microbatches_[static_cast<size_t>(microbatch)], unit);
}

void TrainingExecutor::forward(int unit, int microbatch, Keep keep) {
  if (inventory().units[static_cast<size_t>(unit)].kind == UnitKind::kHead) {
    loss_sum_ += head_loss({.op = Opcode::kLoss, .unit = unit, .microbatch = microbatch}, 0);
  } else {
    run(unit, microbatch).forward(keep);
  }
}

void TrainingExecutor::recompute(int unit, int microbatch, bool output_unused) {
  run(unit, microbatch).recompute(output_unused);
}

double TrainingExecutor::head_loss(const Instruction& instruction, float scale) {
  // The output matrix is parameter 0 of the embedding when tied, else "output.weight" of the head.
  const bool tied = inventory().tied_embeddings, overwrites = options_.sharding.transient_grads();
  UnitBuffers& owner = buffers(tied ? inventory().embedding() : instruction.unit);
  const int index = owner.unit().find(tied ? "tokens.weight" : "output.weight");
  const int64_t rows = context_.vocabulary_rows;
  const bool trains = scale > 0 && owner.unit().parameters[static_cast<size_t>(index)].trained();
  // What no backward of the embedding completes has no part in its other parameters.
  if (trains && tied && !instruction.joins_loss && (overwrites || !instruction.accumulate_tied)) {
    for (int p = 0; p < static_cast<int>(owner.unit().parameters.size()); ++p)
      if (p != index) owner.weight_grad(p).zero_();
  }
  const bool accumulate_output = tied ? instruction.accumulate_tied : instruction.accumulate;
  const UnitRun::OutputMatrix output{.weight = owner.weight(index).narrow(0, 0, rows),
                                     .gradient = trains ? owner.weight_grad(index).narrow(0, 0, rows) : at::Tensor(),
                                     .accumulate = accumulate_output && !overwrites};
  return run(instruction.unit, instruction.microbatch).loss(output, scale, instruction.accumulate && !overwrites);
}

void TrainingExecutor::set_loss_scale(float scale) {
  FIVEFOLD_CHECK(scale > 0);
  loss_scale_ = scale;
}

void TrainingExecutor::loss(const Instruction& instruction) {
  loss_sum_ += head_loss(instruction, loss_scale_ * token_weight_);
}

void TrainingExecutor::backward(const Instruction& instruction) {
  const bool accumulate = instruction.accumulate && !options_.sharding.transient_grads();
  run(instruction.unit, instruction.microbatch).backward(accumulate, instruction.joins_loss);
}

void TrainingExecutor::backward_weight(int unit, int microbatch, bool accumulate) {
  run(unit, microbatch).backward_weight(accumulate && !options_.sharding.transient_grads());
}

// The tensor that crosses the border behind `unit`: its output, or the gradient of it.
at::Tensor& TrainingExecutor::border(int unit, int microbatch, bool gradient) {
  Microbatch& own = microbatches_[static_cast<size_t>(microbatch)];
  return gradient ? own.stream_gradient : own.stream[static_cast<size_t>(unit)];
}

Buffer TrainingExecutor::outgoing(const Instruction& send) {
  return as_buffer(border(send.unit, send.microbatch, send.op == Opcode::kSendGradients), context_.compute);
}

Buffer TrainingExecutor::incoming(const Instruction& receive) {
  at::Tensor& tensor = border(receive.unit, receive.microbatch, receive.op == Opcode::kRecvGradients);
  FIVEFOLD_CHECK(!tensor.defined());
  const int64_t tokens = microbatches_[static_cast<size_t>(receive.microbatch)].tokens;
  tensor = allocate(Account::kActivations, {div_exact(tokens, options_.split.sequence_parts()), context_.model->hidden},
                    context_.compute);
  return as_buffer(tensor, context_.compute);
}

void TrainingExecutor::free_sent(const Instruction& wait_send) {
  border(wait_send.unit, wait_send.microbatch, wait_send.gradient).reset();
}

void TrainingExecutor::accumulate_grads(int unit, bool accumulate) {
  UnitBuffers& unit_buffers = buffers(unit);
  const at::Tensor& transient = unit_buffers.transient_grads();
  float* to = elements<float>(unit_buffers.grads());
  visit_half(transient, [&]<class T>(std::type_identity<T>) {
    const T* from = elements<T>(transient);
    accumulate ? kernels::add_into(from, to, transient.numel(), context_.threads)
               : kernels::convert(from, to, transient.numel(), context_.threads);
  });
  unit_buffers.free_transient_grads();
}

// A unit with weights in 4 bits is gathered as bytes, as one call has one type.
std::vector<InOut> TrainingExecutor::unsharded_params(int unit) {
  std::vector<InOut> all;
  const UnitBuffers& unit_buffers = buffers(unit);
  const DType dtype = unit_buffers.unit().four_bit_bytes > 0 ? DType::kUint8 : context_.compute;
  for (const UnitBuffers::Gathered& weights : unit_buffers.gathered())
    all.push_back({as_buffer(weights.shard, dtype), as_buffer(weights.full, dtype)});
  return all;
}
Buffer TrainingExecutor::params(int unit) { return as_buffer(buffers(unit).params(), context_.compute); }
Buffer TrainingExecutor::transient_grads(int unit) {
  return as_buffer(buffers(unit).transient_grads(), context_.compute);
}
Buffer TrainingExecutor::grads(int unit) { return as_buffer(buffers(unit).grads(), options_.sharding.grads); }

int64_t TrainingExecutor::local_valid_tokens() const {
  int64_t valid = 0;
  for (const Microbatch& microbatch : microbatches_) valid += microbatch.valid_tokens;
  return valid;
}

void TrainingExecutor::set_global_valid_tokens(int64_t tokens) {
  // Without any valid token every row of the loss's gradient is zero whatever the scale.
  token_weight_ = static_cast<float>(1.0 / static_cast<double>(std::max<int64_t>(tokens, 1)));
}

// What another rank counts takes no part in the sum, but a NaN or infinity in it must stop the update as well.
double TrainingExecutor::local_squared_grad_norm() {
  double sum = 0;
  for (size_t unit = 0; unit < buffers_.size(); ++unit) {
    if (buffers_[unit] == nullptr || !buffers_[unit]->trained()) continue;
    const at::Tensor grads = buffers_[unit]->grads_shard();
    const at::Tensor scratch =
        allocate(Account::kWorkspace, {kernels::sum_of_squares_scratch_bytes(grads.numel())}, DType::kUint8);
    visit_dtype(grads, [&]<class T>(std::type_identity<T>) {
      const T* values = elements<T>(grads);
      int64_t done = 0, non_finite = 0;
      for (const PartialRange& range : counted_[unit]) {
        non_finite += kernels::count_non_finite(values + done, range.begin - done, context_.threads);
        sum += kernels::sum_of_squares(values + range.begin, range.end - range.begin, scratch.data_ptr(),
                                       context_.threads);
        done = range.end;
      }
      non_finite += kernels::count_non_finite(values + done, grads.numel() - done, context_.threads);
      if (non_finite > 0) sum = std::numeric_limits<double>::quiet_NaN();
    });
  }
  return sum / (static_cast<double>(loss_scale_) * loss_scale_);
}

// The part of ranges of a unit's buffer that lies in this rank's shard, counted from the shard's first element.
std::vector<PartialRange> TrainingExecutor::in_shard(const Unit& unit, const std::vector<PartialRange>& ranges) const {
  const int64_t size = unit.shard_numel(options_.sharding.shards), first = size * options_.shard;
  std::vector<PartialRange> inside;
  for (const PartialRange& range : ranges) {
    const int64_t begin = std::max(range.begin, first), end = std::min(range.end, first + size);
    if (begin < end) inside.push_back({begin - first, end - first});
  }
  return inside;
}

template <class F>
void TrainingExecutor::for_each_partial(PartialOver over, F&& f) {
  if (over == PartialOver::kTiedEnds && !options_.stages.shares_embedding()) return;
  for (const auto& unit_buffers : buffers_) {
    if (unit_buffers == nullptr) continue;
    const Unit& unit = unit_buffers->unit();
    for (const PartialRange& range : in_shard(unit, partial_gradients(unit, options_.split, over)))
      f(unit_buffers->grads_shard().narrow(0, range.begin, range.end - range.begin));
  }
}

Buffer TrainingExecutor::pack_partial_grads(PartialOver over) {
  FIVEFOLD_CHECK(!partial_grads_.defined());
  int64_t count = 0;
  for_each_partial(over, [&](const at::Tensor& part) { count += part.numel(); });
  if (count == 0) return {};
  partial_grads_ = allocate(Account::kCommBuffers, {count}, options_.sharding.grads);
  auto* to = static_cast<std::byte*>(partial_grads_.data_ptr());
  for_each_partial(over, [&](const at::Tensor& part) {
    std::memcpy(to, part.data_ptr(), part.nbytes());
    to += part.nbytes();
  });
  return as_buffer(partial_grads_, options_.sharding.grads);
}

void TrainingExecutor::unpack_partial_grads(PartialOver over) {
  const auto* from = static_cast<const std::byte*>(partial_grads_.data_ptr());
  for_each_partial(over, [&](const at::Tensor& part) {
    std::memcpy(part.data_ptr(), from, part.nbytes());
    from += part.nbytes();
  });
  partial_grads_.reset();
}

void TrainingExecutor::set_grad_norm(double norm) {
  // torch.nn.utils.clip_grad_norm_'s factor.
  const double clip = options_.optimizer.clip;
  clip_factor_ = clip > 0 ? static_cast<float>(std::min(1.0, clip / (norm + 1e-6))) : 1.0f;
}

}  // namespace fivefold
