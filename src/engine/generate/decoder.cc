#include "engine/generate/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/ops/attention.h"
#include "kernels/decode_attention.h"
#include "kernels/elementwise.h"
#include "kernels/row_product.h"

namespace fivefold {
namespace {

// Floats that the kernels for one token need at most.
int64_t scratch_elements(const ModelSpec& model, const std::vector<UnitOperations>& operations,
                         const DecoderOptions& options) {
  int64_t most = model.hidden;
  for (const UnitOperations& unit : operations)
    if (unit.kind == UnitKind::kLayer)
      for (const Slot& slot : unit.slots) most = std::max(most, slot.width);
  for (const LayerSpec& layer : model.layers) {
    const MixerSpec& mixer = layer.mixer;
    most = std::max(most, kernels::decode_attention_scratch(options.positions, mixer.num_heads, mixer.num_kv_heads,
                                                            mixer.head_dim, options.threads));
  }
  return most;
}

ops::HeadGeometry heads_of(const MixerSpec& mixer) { return {mixer.num_heads, mixer.num_kv_heads, mixer.head_dim}; }

float scale_of(const MixerSpec& mixer) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(mixer.head_dim)));
}

}  // namespace

Decoder::Decoder(const ModelSpec& model, const Inventory& inventory, const DecoderOptions& options)
    : model_(model), inventory_(inventory), options_(options) {
  FIVEFOLD_CHECK(options.positions > 0 && options.chunk > 0);
  for (int u = 0; u < inventory.num_units(); ++u) {
    const Unit& unit = inventory.units[static_cast<size_t>(u)];
    operations_.push_back(unit_operations(model, inventory, u));
    const at::Tensor flat = allocate(Account::kParams, {unit.aligned_numel}, options.compute);
    std::vector<at::Tensor>& views = weights_.emplace_back();
    for (const ParameterEntry& entry : unit.parameters)
      views.push_back(flat.narrow(0, entry.offset, entry.numel()).view(entry.shape));
  }
  for (const LayerSpec& layer : model.layers)
    cache_.push_back(allocate(
        Account::kKvCache, {options.positions, 2 * layer.mixer.num_kv_heads * layer.mixer.head_dim}, options.compute));
  rope_ = rope_tables(model, options.positions);
  row_ = make_rows(1);
  normed_ = allocate(Account::kActivations, {1, model.hidden}, options.compute);
  logits_ = allocate(Account::kLogits, {1, model.vocab}, DType::kFloat32);
  scratch_ = allocate(Account::kWorkspace, {scratch_elements(model, operations_, options)}, DType::kFloat32);
}

Status Decoder::load(ParameterSource& source) {
  std::vector<float> packed;
  for (int u = 0; u < inventory_.num_units(); ++u) {
    const std::vector<ParameterEntry>& parameters = inventory_.units[static_cast<size_t>(u)].parameters;
    for (size_t p = 0; p < parameters.size(); ++p) {
      packed.resize(static_cast<size_t>(parameters[p].whole_numel()));
      FIVEFOLD_TRY(source.read(parameters[p], packed));
      const at::Tensor& to = weight(u, static_cast<int>(p));
      FIVEFOLD_CHECK(to.numel() == static_cast<int64_t>(packed.size()));
      if (options_.compute == DType::kFloat32) {
        std::memcpy(to.data_ptr(), packed.data(), to.nbytes());
      } else {
        kernels::convert(packed.data(), elements<kernels::BFloat16>(to), to.numel(), options_.threads);
      }
    }
  }
  return Ok{};
}

Decoder::Rows Decoder::make_rows(int64_t count) const {
  Rows rows;
  rows.count = count;
  rows.ids = allocate(Account::kData, {count}, DType::kInt32);
  rows.positions = allocate(Account::kData, {count}, DType::kInt32);
  for (at::Tensor& stream : rows.stream)
    stream = allocate(Account::kActivations, {count, model_.hidden}, options_.compute);
  for (int64_t layer = 0; layer < static_cast<int64_t>(model_.layers.size()); ++layer) {
    const std::vector<Slot>& slots = operations(unit_of(layer)).slots;
    rows.slots.resize(std::max(rows.slots.size(), slots.size()));
    for (size_t s = 0; s < slots.size(); ++s) {
      if (slots[s].lifetime == Lifetime::kInput || slots[s].lifetime == Lifetime::kOutput) continue;
      if (rows.slots[s].defined() && rows.slots[s].size(1) == slots[s].width) continue;
      FIVEFOLD_CHECK(!rows.slots[s].defined(), "layers of different shapes cannot share their buffers");
      rows.slots[s] =
          allocate(Account::kActivations, {count, slots[s].width}, slots[s].fp32 ? DType::kFloat32 : options_.compute);
    }
  }
  return rows;
}

std::span<const float> Decoder::append(std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  FIVEFOLD_CHECK(count > 0 && length_ + count <= options_.positions);
  for (const int32_t id : tokens) FIVEFOLD_CHECK(id >= 0 && id < model_.vocab);
  for (int64_t done = 0; done < count;) {
    const int64_t rows = std::min(options_.chunk, count - done);
    const std::span<const int32_t> part = tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(rows));
    Rows several;
    if (rows > 1) several = make_rows(rows);
    Rows& used = rows > 1 ? several : row_;
    forward(used, part);
    done += rows;
    const auto layers = static_cast<int64_t>(model_.layers.size());
    if (done == count) compute_logits(used.stream[layers % 2].narrow(0, rows - 1, 1));
  }
  return {elements<float>(logits_), static_cast<size_t>(model_.vocab)};
}

void Decoder::forward(Rows& rows, std::span<const int32_t> tokens) {
  std::memcpy(rows.ids.data_ptr(), tokens.data(), tokens.size_bytes());
  std::iota(elements<int32_t>(rows.positions), elements<int32_t>(rows.positions) + rows.count,
            static_cast<int32_t>(length_));
  const Operation& embedding = operations(0).operations[0];
  ops::embedding_forward(rows.ids, weight(0, embedding.weight), {}, model_.embedding_scale, rows.positions,
                         optional_weight(0, embedding.weight2), rows.stream[0], options_.threads);
  for (int64_t layer = 0; layer < static_cast<int64_t>(model_.layers.size()); ++layer)
    for (const Operation& op : operations(unit_of(layer)).operations) execute(op, layer, rows);
  length_ += rows.count;
}

at::Tensor& Decoder::slot(int index, int64_t layer, Rows& rows) const {
  switch (operations(unit_of(layer)).slots[static_cast<size_t>(index)].lifetime) {
    case Lifetime::kInput:
      return rows.stream[layer % 2];
    case Lifetime::kOutput:
      return rows.stream[(layer + 1) % 2];
    case Lifetime::kSaved:
    case Lifetime::kRebuilt:
    case Lifetime::kDropped:
      break;
  }
  return rows.slots[static_cast<size_t>(index)];
}

ops::NormTensors Decoder::norm_tensors(const Operation& op, int64_t layer, Rows& rows) const {
  ops::NormTensors norm;
  norm.spec = &model_.layers[static_cast<size_t>(layer)].norm;
  norm.weight = weight(unit_of(layer), op.weight);
  norm.bias = optional_weight(unit_of(layer), op.bias);
  norm.rstd = slot(op.extra[0], layer, rows);
  if (op.extra.size() > 1) norm.mean = slot(op.extra[1], layer, rows);
  return norm;
}

void Decoder::execute(const Operation& op, int64_t layer, Rows& rows) {
  const LayerSpec& spec = model_.layers[static_cast<size_t>(layer)];
  const ops::HeadGeometry heads = heads_of(spec.mixer);
  const int unit = unit_of(layer), threads = options_.threads;
  at::Tensor& in = slot(op.input, layer, rows);
  at::Tensor& out = slot(op.output, layer, rows);
  switch (op.kind) {
    case OperationKind::kNorm:
      ops::norm_forward(in, norm_tensors(op, layer, rows), ops::NormStatistics::kCompute, out, threads);
      return;
    case OperationKind::kLinear:
      linear(op, unit, in, op.residual < 0 ? at::Tensor() : slot(op.residual, layer, rows), out);
      return;
    case OperationKind::kQkNorm:
      ops::qk_norm_forward(in, heads, spec.norm.eps, weight(unit, op.weight), weight(unit, op.weight2),
                           slot(op.extra[0], layer, rows), slot(op.extra[1], layer, rows), threads);
      return;
    case OperationKind::kRope: {
      const RopeTables& tables = rope_[static_cast<size_t>(layer)];
      ops::rope(in, heads, tables.cos, tables.sin, rows.positions, ops::RopeTurn::kForward, threads);
      return;
    }
    case OperationKind::kAttention:
      attend(layer, in, out, slot(op.extra[0], layer, rows));
      return;
    case OperationKind::kGatedActivation:
      ops::gated_activation_forward(in, out, threads);
      return;
    case OperationKind::kActivation:
      ops::activation_forward(spec.mlp.activation, in, out, threads);
      return;
    case OperationKind::kEmbedding:
    case OperationKind::kAddNorm:
    case OperationKind::kBlock:
    case OperationKind::kLoss:
      break;
  }
  FIVEFOLD_CHECK(false, "the validation rules let operation " + op.name + " through");
}

void Decoder::linear(const Operation& op, int unit, const at::Tensor& x, const at::Tensor& residual, at::Tensor& out) {
  const at::Tensor bias = optional_weight(unit, op.bias);
  if (x.size(0) == 1) return row_linear(x, weight(unit, op.weight), bias, residual, out);
  ops::linear_forward(x, weight(unit, op.weight), bias, residual, out);
}

void Decoder::row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const at::Tensor& residual, at::Tensor& out) {
  visit_dtype(x, [&]<class T>(std::type_identity<T>) {
    kernels::row_product(kernels::RowProduct<T>{.x = elements<T>(x),
                                                .weight = elements<T>(weight),
                                                .bias = elements<T>(bias),
                                                .residual = elements<T>(residual),
                                                .out = out.data_ptr(),
                                                .out_type = element_type(out),
                                                .scratch = elements<float>(scratch_),
                                                .rows = weight.size(0),
                                                .cols = weight.size(1),
                                                .num_threads = options_.threads});
  });
}

void Decoder::attend(int64_t layer, const at::Tensor& qkv, at::Tensor& out, at::Tensor& lse) {
  const MixerSpec& mixer = model_.layers[static_cast<size_t>(layer)].mixer;
  const ops::HeadGeometry heads = heads_of(mixer);
  const at::Tensor& cache = cache_[static_cast<size_t>(layer)];
  const int64_t rows = qkv.size(0), keys = heads.num_heads * heads.head_dim, width = cache.size(1);
  visit_dtype(qkv, [&]<class T>(std::type_identity<T>) {
    const T* packed = elements<T>(qkv);
    T* cached = elements<T>(cache);
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(packed + r * heads.qkv_width() + keys, width, cached + (length_ + r) * width);
    if (rows == 1) {
      kernels::decode_attention(kernels::DecodeAttention<T>{.q = packed,
                                                            .cache = cached,
                                                            .out = elements<T>(out),
                                                            .scratch = elements<float>(scratch_),
                                                            .positions = length_ + 1,
                                                            .num_heads = heads.num_heads,
                                                            .num_kv_heads = heads.num_kv_heads,
                                                            .head_dim = heads.head_dim,
                                                            .scale = scale_of(mixer),
                                                            .num_threads = options_.threads});
      return;
    }
    const AttentionSegment all{.q_len = rows, .kv_len = length_ + rows};
    const ops::AttentionLayout layout{.segments = {&all, 1},
                                      .q_rows = rows,
                                      .kv_rows = length_ + rows,
                                      .num_heads = heads.num_heads,
                                      .num_kv_heads = heads.num_kv_heads,
                                      .head_dim = heads.head_dim,
                                      .q_stride = heads.qkv_width(),
                                      .kv_stride = width,
                                      .scale = scale_of(mixer)};
    const int64_t bytes = ops::attention_forward_scratch_bytes(layout.shape(), options_.threads);
    const at::Tensor work = allocate(Account::kWorkspace, {bytes}, DType::kUint8);
    ops::attention_forward<T>(layout, {packed, cached, cached + heads.num_kv_heads * heads.head_dim},
                              {.data = out.data_ptr(), .type = element_type(out)}, elements<float>(lse),
                              {static_cast<std::byte*>(work.data_ptr()), work.nbytes()});
  });
}

void Decoder::compute_logits(const at::Tensor& last) {
  const int head = inventory_.head();
  const Operation& norm_op = operations(head).operations[0];
  const at::Tensor statistics = allocate(Account::kActivations, {2, 1}, DType::kFloat32);
  ops::NormTensors norm;
  norm.spec = &model_.final_norm;
  norm.weight = weight(head, norm_op.weight);
  norm.bias = optional_weight(head, norm_op.bias);
  norm.rstd = statistics[0];
  if (norm_op.extra.size() > 1) norm.mean = statistics[1];
  ops::norm_forward(last, norm, ops::NormStatistics::kCompute, normed_, 1);
  // The output matrix is parameter 0 of the embedding when tied, else "output.weight" of the head.
  const bool tied = inventory_.tied_embeddings;
  const int unit = tied ? inventory_.embedding() : head;
  const int output = inventory_.units[static_cast<size_t>(unit)].find(tied ? "tokens.weight" : "output.weight");
  row_linear(normed_, weight(unit, output), at::Tensor(), at::Tensor(), logits_);
}

}  // namespace fivefold
