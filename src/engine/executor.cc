#include "engine/executor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/philox.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "spec/rope.h"

namespace fivefold {
namespace {

bool same_rope(const RopeSpec& a, const RopeSpec& b) {
  return a.theta == b.theta && a.rotary_dim == b.rotary_dim && a.scaling == b.scaling && a.factor == b.factor &&
         a.original_max_positions == b.original_max_positions && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor && a.beta_fast == b.beta_fast && a.beta_slow == b.beta_slow &&
         a.attention_factor == b.attention_factor && a.mscale == b.mscale && a.mscale_all_dim == b.mscale_all_dim &&
         a.truncate == b.truncate;
}

at::Tensor copied(Account account, std::span<const float> values, int64_t rows, int64_t cols) {
  at::Tensor tensor = allocate(account, {rows, cols}, DType::kFloat32);
  FIVEFOLD_CHECK(static_cast<int64_t>(values.size()) == tensor.numel());
  std::memcpy(tensor.data_ptr(), values.data(), tensor.nbytes());
  return tensor;
}

at::Tensor int_tensor(const std::vector<int32_t>& values, int64_t capacity) {
  FIVEFOLD_CHECK(static_cast<int64_t>(values.size()) <= capacity);
  at::Tensor tensor = allocate(Account::kData, {capacity}, DType::kInt32);
  std::memcpy(tensor.data_ptr(), values.data(), values.size() * sizeof(int32_t));
  return tensor;
}

}  // namespace

TrainingExecutor::TrainingExecutor(const ModelSpec& model, const Inventory& inventory, const ExecutorOptions& options,
                                   const TensorParallel* tensor)
    : options_(options) {
  FIVEFOLD_CHECK((tensor != nullptr) == (options.split.size > 1));
  context_.model = &model;
  context_.inventory = &inventory;
  context_.compute = options.sharding.compute;
  context_.loss_chunk = options.loss_chunk;
  context_.threads = options.threads;
  context_.tensor = tensor;
  const ParameterEntry& tokens = inventory.units[0].parameters[0];
  context_.vocabulary_rows = tokens.slices.front().rows;
  if (tensor != nullptr)
    context_.vocabulary = {.first = tokens.slices.front().whole_row, .whole = tokens.whole_shape[0]};
  for (int unit = 0; unit < inventory.num_units(); ++unit) {
    context_.operations.push_back(unit_operations(model, inventory, unit, options.split));
    buffers_.push_back(std::make_unique<UnitBuffers>(inventory.units[static_cast<size_t>(unit)], options.sharding,
                                                     options.shard, options.optimizer_states));
  }
  for (int unit = 0; unit < inventory.num_units(); ++unit)
    counted_.push_back(in_shard(inventory.units[static_cast<size_t>(unit)],
                                counted_in_norm(inventory.units[static_cast<size_t>(unit)])));
  build_rope_tables(options.sequence);
}

void TrainingExecutor::build_rope_tables(int64_t positions) {
  const std::vector<LayerSpec>& layers = context_.model->layers;
  std::vector<int64_t> rows(static_cast<size_t>(positions));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  context_.rope.resize(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].mixer.has_rope) continue;
    const RopeSpec& rope = layers[i].mixer.rope;
    const auto earlier =
        std::find_if(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(i),
                     [&](const LayerSpec& l) { return l.mixer.has_rope && same_rope(l.mixer.rope, rope); });
    if (earlier != layers.begin() + static_cast<std::ptrdiff_t>(i)) {
      context_.rope[i] = context_.rope[static_cast<size_t>(earlier - layers.begin())];
      continue;
    }
    const RopeTable table = rope_table(rope, positions, rows);
    context_.rope[i] = {copied(Account::kData, table.cos, positions, rope.rotary_dim / 2),
                        copied(Account::kData, table.sin, positions, rope.rotary_dim / 2)};
  }
}

void TrainingExecutor::initialize_weights(uint64_t seed) {
  // In portions, so that no rank holds a whole parameter beside its buffers.
  constexpr int64_t kPortion = int64_t{1} << 16;
  std::vector<float> values;
  for (int unit = 0; unit < inventory().num_units(); ++unit) {
    const Unit& spec = inventory().units[static_cast<size_t>(unit)];
    for (size_t p = 0; p < spec.parameters.size(); ++p) {
      const ParameterEntry& entry = spec.parameters[p];
      for (const ElementRun& run : element_runs(entry, 0, entry.numel())) {
        for (int64_t done = 0; done < run.count; done += kPortion) {
          const int64_t count = std::min(kPortion, run.count - done);
          values.assign(static_cast<size_t>(count), entry.initializer == Initializer::kOnes ? 1.0f : 0.0f);
          if (entry.initializer == Initializer::kNormal) {
            fill_normal(seed, random_stream(entry.name), static_cast<uint64_t>(run.whole + done), values);
            for (float& value : values) value *= static_cast<float>(entry.init_std);
          }
          set_local(unit, static_cast<int>(p), values, run.local + done);
        }
      }
    }
  }
}

void TrainingExecutor::set_parameter(int unit, int parameter, std::span<const float> values, int64_t begin) {
  const ParameterEntry& entry = buffers(unit).unit().parameters[static_cast<size_t>(parameter)];
  const int64_t end = begin + static_cast<int64_t>(values.size());
  FIVEFOLD_CHECK(begin >= 0 && end <= entry.whole_numel());
  for (const ElementRun& run : element_runs(entry, 0, entry.numel())) {
    const int64_t first = std::max(begin, run.whole), last = std::min(end, run.whole + run.count);
    if (first >= last) continue;
    set_local(unit, parameter, values.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first)),
              run.local + first - run.whole);
  }
}

// Elements [begin, begin + values.size()) of what this rank's tensor group position holds of the parameter.
void TrainingExecutor::set_local(int unit, int parameter, std::span<const float> values, int64_t begin) {
  UnitBuffers& unit_buffers = buffers(unit);
  const ParameterEntry& entry = unit_buffers.unit().parameters[static_cast<size_t>(parameter)];
  const int64_t end = begin + static_cast<int64_t>(values.size());
  FIVEFOLD_CHECK(begin >= 0 && end <= entry.numel());
  const ShardRange own = unit_buffers.range(parameter);
  const int64_t own_begin = std::max(begin, own.begin), own_end = std::min(end, own.end);
  if (own_begin < own_end) {
    float* master = elements<float>(unit_buffers.master_shard()) + (own.shard_offset + own_begin - own.begin);
    std::copy(values.begin() + (own_begin - begin), values.begin() + (own_end - begin), master);
  }
  // The working weights: in full below ZeRO-3, else the shard.
  const bool full = !options_.sharding.shards_params();
  const int64_t from = full ? begin : own_begin, to = full ? end : own_end;
  if (from >= to) return;
  const int64_t offset = full ? entry.offset : own.shard_offset - own.begin;
  const float* source = values.data() + (from - begin);
  if (context_.compute == DType::kFloat32) {
    std::copy(source, source + (to - from), elements<float>(unit_buffers.params()) + (offset + from));
  } else {
    kernels::convert(source, elements<kernels::BFloat16>(unit_buffers.params()) + (offset + from), to - from,
                     context_.threads);
  }
}

void TrainingExecutor::refresh_working_weights() {
  if (!options_.sharding.has_master()) return;
  for (const auto& unit_buffers : buffers_) {
    const at::Tensor master = unit_buffers->master_shard();
    kernels::convert(elements<float>(master), elements<kernels::BFloat16>(unit_buffers->params_shard()), master.numel(),
                     context_.threads);
  }
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
  microbatch.stream.resize(buffers_.size());
  microbatch.slots.resize(buffers_.size());
  microbatch.kept.resize(buffers_.size());
  return microbatch;
}

void TrainingExecutor::load_step(const std::vector<MicrobatchTokens>& microbatches) {
  microbatches_.clear();
  for (const MicrobatchTokens& tokens : microbatches) microbatches_.push_back(load(tokens));
  loss_sum_ = 0;
}

UnitRun TrainingExecutor::run(int unit, int microbatch) {
  return UnitRun(context_, buffers(unit), microbatches_[static_cast<size_t>(microbatch)], unit);
}

void TrainingExecutor::forward(int unit, int microbatch, Keep keep) {
  if (inventory().units[static_cast<size_t>(unit)].kind == UnitKind::kHead) {
    loss_sum_ += head_loss(unit, microbatch, 0, false);
  } else {
    run(unit, microbatch).forward(keep);
  }
}

void TrainingExecutor::recompute(int unit, int microbatch, bool output_unused) {
  run(unit, microbatch).recompute(output_unused);
}

double TrainingExecutor::head_loss(int unit, int microbatch, float scale, bool accumulate) {
  // The output matrix is parameter 0 of the embedding when tied, else "output.weight" of the head.
  UnitBuffers& owner = inventory().tied_embeddings ? buffers(inventory().embedding()) : buffers(unit);
  const int index =
      inventory().tied_embeddings ? owner.unit().find("tokens.weight") : owner.unit().find("output.weight");
  const int64_t rows = context_.vocabulary_rows;
  const at::Tensor grad = scale > 0 ? owner.weight_grad(index).narrow(0, 0, rows) : at::Tensor();
  return run(unit, microbatch)
      .loss(owner.weight(index).narrow(0, 0, rows), grad, scale, accumulate && !options_.sharding.transient_grads());
}

void TrainingExecutor::loss(int unit, int microbatch, bool accumulate) {
  loss_sum_ += head_loss(unit, microbatch, loss_scale_, accumulate);
}

void TrainingExecutor::backward(int unit, int microbatch, bool accumulate) {
  run(unit, microbatch).backward(accumulate && !options_.sharding.transient_grads());
}

void TrainingExecutor::accumulate_grads(int unit, bool accumulate) {
  UnitBuffers& unit_buffers = buffers(unit);
  const at::Tensor& transient = unit_buffers.transient_grads();
  const auto* from = elements<kernels::BFloat16>(transient);
  float* to = elements<float>(unit_buffers.grads());
  if (accumulate) {
    kernels::add_into(from, to, transient.numel(), context_.threads);
  } else {
    kernels::convert(from, to, transient.numel(), context_.threads);
  }
  unit_buffers.free_transient_grads();
}

Buffer TrainingExecutor::unsharded_params(int unit) { return as_buffer(buffers(unit).unsharded(), context_.compute); }
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
  loss_scale_ = static_cast<float>(1.0 / static_cast<double>(std::max<int64_t>(tokens, 1)));
}

double TrainingExecutor::local_squared_grad_norm() {
  double sum = 0;
  for (size_t unit = 0; unit < buffers_.size(); ++unit) {
    const at::Tensor grads = buffers_[unit]->grads_shard();
    const at::Tensor scratch =
        allocate(Account::kWorkspace, {kernels::sum_of_squares_scratch_bytes(grads.numel())}, DType::kUint8);
    for (const PartialRange& range : counted_[unit]) {
      visit_dtype(grads, [&]<class T>(std::type_identity<T>) {
        sum += kernels::sum_of_squares(elements<T>(grads) + range.begin, range.end - range.begin, scratch.data_ptr(),
                                       context_.threads);
      });
    }
  }
  return sum;
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
  for (const auto& unit_buffers : buffers_) {
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

void TrainingExecutor::optimizer_step(int unit) {
  UnitBuffers& unit_buffers = buffers(unit);
  const OptimizerConfig& config = options_.optimizer;
  float* master = elements<float>(unit_buffers.master_shard());
  float* moment1 = elements<float>(unit_buffers.moment1());
  float* moment2 = elements<float>(unit_buffers.moment2());
  const at::Tensor working = options_.sharding.has_master() ? unit_buffers.params_shard() : at::Tensor();
  kernels::BFloat16* copy = elements<kernels::BFloat16>(working);
  const at::Tensor grads = unit_buffers.grads_shard();
  visit_dtype(grads, [&]<class G>(std::type_identity<G>) {
    const G* grad = elements<G>(grads);
    for (size_t p = 0; p < unit_buffers.unit().parameters.size(); ++p) {
      const ShardRange range = unit_buffers.range(static_cast<int>(p));
      const int64_t n = range.end - range.begin, at = range.shard_offset;
      if (n == 0) continue;
      const bool decays =
          config.decay == DecayScope::kAll || unit_buffers.unit().parameters[p].decay == DecayClass::kMatrix;
      const double decay = decays ? config.weight_decay : 0.0;
      if (config.kind == OptimizerKind::kAdamW) {
        kernels::adamw_step(kernels::AdamW<G>{.param = master + at,
                                              .m = moment1 + at,
                                              .v = moment2 + at,
                                              .grad = grad + at,
                                              .param_bf16 = copy == nullptr ? nullptr : copy + at,
                                              .n = n,
                                              .grad_scale = clip_factor_,
                                              .lr = learning_rate_,
                                              .beta1 = config.betas[0],
                                              .beta2 = config.betas[1],
                                              .eps = config.eps,
                                              .weight_decay = decay,
                                              .step = update_,
                                              .num_threads = context_.threads});
      } else {
        kernels::sgd_step(kernels::Sgd<G>{.param = master + at,
                                          .momentum_buffer = moment1 == nullptr ? nullptr : moment1 + at,
                                          .grad = grad + at,
                                          .param_bf16 = copy == nullptr ? nullptr : copy + at,
                                          .n = n,
                                          .grad_scale = clip_factor_,
                                          .lr = learning_rate_,
                                          .momentum = config.momentum,
                                          .weight_decay = decay,
                                          .num_threads = context_.threads});
      }
    }
  });
}

}  // namespace fivefold
