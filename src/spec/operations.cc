#include "spec/operations.h"

#include <utility>

#include "spec/rebuild.h"

namespace fivefold {
namespace {

// Builds one unit's operation list. Slots are created in the order in which forward writes them.
class OperationBuilder {
 public:
  OperationBuilder(const ModelSpec& model, const Unit& unit, const TensorSplit& split)
      : model_(model), unit_(unit), cuts_(split.size > 1) {
    ops_.kind = unit.kind;
  }

  int slot(const std::string& name, int64_t width, Lifetime lifetime, bool split_by_tp) {
    ops_.slots.push_back({name, width, false, lifetime, split_by_tp});
    return static_cast<int>(ops_.slots.size()) - 1;
  }
  int statistics(const std::string& name, int64_t width, bool split_by_tp) {
    ops_.slots.push_back({name, width, true, Lifetime::kSaved, split_by_tp});
    return static_cast<int>(ops_.slots.size()) - 1;
  }
  int row_lengths(const std::string& linear, int64_t rows) {
    ops_.slots.push_back({.name = linear + ".row_lengths", .width = rows, .fp32 = true, .per_feature = true});
    return static_cast<int>(ops_.slots.size()) - 1;
  }
  void drop_by(Droppable name, const std::vector<int>& slots) {
    for (const int slot : slots) ops_.slots[static_cast<size_t>(slot)].name_to_drop = name;
  }
  Operation& add(OperationKind kind, const std::string& name, int input, int output) {
    Operation op;
    op.kind = kind;
    op.name = name;
    op.weight = unit_.find(name + ".weight");
    op.bias = unit_.find(name + ".bias");
    op.input = input;
    op.output = output;
    if (op.weight >= 0) {
      const ParameterEntry& weight = parameter(op.weight);
      op.trains = weight.trained();
      op.weight_numel = weight.numel();
      op.four_bit = weight.storage == Storage::kFourBit;
      if (kind == OperationKind::kLinear) {
        op.adapter = adapter(name, weight);
        if (op.adapter.scales()) {
          op.adapter.row_lengths = row_lengths(name, parameter(op.adapter.magnitude).rows());
          op.extra = {op.adapter.row_lengths};
        }
        if (cuts_) op.cut = weight.split == Split::kRow ? LinearCut::kRow : LinearCut::kColumn;
      }
    }
    ops_.operations.push_back(std::move(op));
    return ops_.operations.back();
  }
  std::vector<int> norm_statistics(const std::string& name, const NormSpec& norm) {
    std::vector<int> slots{statistics(name + ".rstd", 1, false)};
    if (norm.kind == NormKind::kLayer) slots.push_back(statistics(name + ".mean", 1, false));
    return slots;
  }
  // Norm whose output is rebuilt in backward.
  int norm(const std::string& name, const NormSpec& norm, int input, int64_t h) {
    auto stats = norm_statistics(name, norm);
    const int output = slot(name, h, Lifetime::kRebuilt, false);
    add(OperationKind::kNorm, name, input, output).extra = std::move(stats);
    return output;
  }
  const Unit& unit() const { return unit_; }
  const ParameterEntry& parameter(int index) const { return unit_.parameters[static_cast<size_t>(index)]; }
  UnitOperations finish(int output) {
    ops_.output = output;
    ops_.slots[static_cast<size_t>(output)].lifetime = Lifetime::kOutput;
    return std::move(ops_);
  }

 private:
  // Blocks of the output features are pieces of the weight, or all of it where they are one tensor on disk.
  LowRankAdapter adapter(const std::string& linear, const ParameterEntry& weight) const {
    LowRankAdapter result;
    result.a = unit_.find(linear + ".lora_a.weight");
    if (result.a < 0) return result;
    result.b = unit_.find(linear + ".lora_b.weight");
    result.rank = model_.adapter->rank;
    result.scale = model_.adapter->scale;
    result.dropout = model_.adapter->dropout;
    result.magnitude = unit_.find(linear + ".lora_magnitude");
    const ParameterEntry& a = parameter(result.a);
    result.whole_in = a.whole_cols();
    result.first_input = a.slices.front().whole_col;
    const bool pieces = weight.parts.size() == weight.pieces.size();
    int64_t b_row = 0;
    for (const int part : parameter(result.b).adapted_parts) {
      LowRankAdapter::Piece piece{.output_row = 0, .rows = weight.rows(), .b_row = b_row};
      for (int before = 0; pieces && before < part; ++before)
        piece.output_row += weight.pieces[static_cast<size_t>(before)];
      if (pieces) piece.rows = weight.pieces[static_cast<size_t>(part)];
      b_row += piece.rows;
      result.pieces.push_back(piece);
    }
    return result;
  }

  const ModelSpec& model_;
  const Unit& unit_;
  bool cuts_;
  UnitOperations ops_;
};

// Attention from the normed input to the concatenated heads; returns the slot of the heads' output.
int add_attention(OperationBuilder& b, const MixerSpec& m, const ContextSplit& context, int input) {
  const int64_t heads = m.num_heads + 2 * m.num_kv_heads, qk_heads = m.num_heads + m.num_kv_heads;
  const int64_t gate = m.output_gate ? m.num_heads * m.head_dim : 0;
  // Ulysses keeps what it has exchanged them for.
  const bool ulysses = context.degree > 1 && context.kind == CpKind::kUlysses;
  const int qkv = b.slot("qkv", heads * m.head_dim + gate, ulysses ? Lifetime::kRebuilt : Lifetime::kSaved, true);
  b.add(OperationKind::kLinear, "qkv", input, qkv);
  b.drop_by(Droppable::kAttentionQkv, {qkv});
  if (m.qk_norm) {
    const int copy = b.slot("qk_before_norm", qk_heads * m.head_dim, Lifetime::kSaved, true);
    const int rstd = b.statistics("qk_norm.rstd", qk_heads, true);
    Operation& op = b.add(OperationKind::kQkNorm, "qk_norm", qkv, qkv);
    op.weight = b.unit().find("q_norm.weight");
    op.weight2 = b.unit().find("k_norm.weight");
    op.trains = b.parameter(op.weight).trained();
    op.extra = {copy, rstd};
    b.drop_by(Droppable::kAttentionQkv, op.extra);
  }
  if (m.has_rope) b.add(OperationKind::kRope, "rope", qkv, qkv);
  const int out = b.slot("attention", m.num_heads * m.head_dim, Lifetime::kSaved, true);
  const int lse = b.statistics("attention.lse", m.num_heads, true);
  Operation& op = b.add(OperationKind::kAttention, "attention", qkv, out);
  op.extra = {lse};
  b.drop_by(Droppable::kAttentionOut, {out, lse});
  if (ulysses) {
    // Of all tokens, a c-th of the heads; KV heads fewer than c are on several ranks.
    const int64_t c = context.degree, kv = m.num_kv_heads >= c ? m.num_kv_heads : c;
    op.extra.push_back(b.slot("attention.qkv_heads", (m.num_heads + 2 * kv) * m.head_dim, Lifetime::kSaved, true));
    op.extra.push_back(b.slot("attention.out_heads", m.num_heads * m.head_dim, Lifetime::kSaved, true));
    b.drop_by(Droppable::kAttentionQkv, {op.extra[1]});
    b.drop_by(Droppable::kAttentionOut, {op.extra[2]});
  }
  return out;
}

// A mixer that only the planner knows: its widest tensors, kept as they come (docs/memory.md lists them).
int add_block_mixer(OperationBuilder& b, const MixerSpec& m, int input) {
  std::vector<int> extra;
  int64_t out_width = 0;
  if (m.kind == MixerKind::kLatentAttention) {
    const int64_t q = m.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim), v = m.num_heads * m.v_head_dim;
    if (m.q_lora_rank > 0) extra.push_back(b.slot("q_latent", 2 * m.q_lora_rank, Lifetime::kSaved, false));
    extra.push_back(b.slot("kv_latent", 2 * m.kv_lora_rank + m.qk_rope_head_dim, Lifetime::kSaved, false));
    extra.push_back(b.slot("qkv", 2 * q + v, Lifetime::kSaved, true));
    extra.push_back(b.statistics("attention.lse", m.num_heads, true));
    out_width = v;
  } else if (m.kind == MixerKind::kLinearAttention) {
    const int64_t key = m.linear_key_heads * m.linear_key_dim, value = m.linear_value_heads * m.linear_value_dim;
    extra.push_back(b.slot("qkvz", 2 * key + 2 * value, Lifetime::kSaved, true));
    extra.push_back(b.slot("conv", 2 * key + value, Lifetime::kSaved, true));
    extra.push_back(b.statistics("decay", 2 * m.linear_value_heads, true));
    out_width = value;
  } else {
    const int64_t inner = m.ssm_heads * m.ssm_head_dim, conv = inner + 2 * m.ssm_groups * m.ssm_state;
    extra.push_back(b.slot("in_proj", inner + conv + m.ssm_heads, Lifetime::kSaved, true));
    extra.push_back(b.slot("conv", conv, Lifetime::kSaved, true));
    out_width = inner;
  }
  const int out = b.slot("mixer", out_width, Lifetime::kSaved, true);
  b.add(OperationKind::kBlock, "mixer", input, out).extra = std::move(extra);
  return out;
}

// MoE up to the weighted sum of expert outputs: K rows per token, balanced routing.
int add_moe(OperationBuilder& b, const MlpSpec& m, int64_t h, int input) {
  const int64_t k = m.experts_per_token, up = m.expert_gated ? 2 : 1, shared = m.shared_ffn;
  std::vector<int> extra{b.statistics("router", m.num_experts, false),
                         b.slot("dispatched", k * h, Lifetime::kSaved, false),
                         b.slot("experts.up", k * up * m.expert_ffn, Lifetime::kSaved, true)};
  if (shared > 0) extra.push_back(b.slot("shared.up", up * shared, Lifetime::kSaved, true));
  const int out = b.slot("moe", h, Lifetime::kRebuilt, false);
  b.add(OperationKind::kBlock, "moe", input, out).extra = std::move(extra);
  return out;
}

int add_mlp_inner(OperationBuilder& b, const MlpSpec& m, int input) {
  const bool gated = m.kind == MlpKind::kGated;
  const std::string name = gated ? "gate_up" : "up";
  const int up = b.slot(name, gated ? 2 * m.ffn : m.ffn, Lifetime::kSaved, true);
  b.add(OperationKind::kLinear, name, input, up);
  b.drop_by(gated ? Droppable::kMlpGateUp : Droppable::kMlpUp, {up});
  const int act = b.slot("activation", m.ffn, Lifetime::kRebuilt, true);
  b.add(gated ? OperationKind::kGatedActivation : OperationKind::kActivation, "activation", up, act);
  return act;
}

// Ends a sublayer: projection (unless the block included it) and residual add, with a post-norm where the family has
// one.
int add_projection(OperationBuilder& b, const LayerSpec& layer, const std::string& sublayer, const std::string& linear,
                   int inner, int residual, int64_t h) {
  const bool project = !linear.empty();
  if (!layer.post_norm) {
    const int out = b.slot(sublayer + "_out", h, Lifetime::kSaved, false);
    Operation& op = b.add(project ? OperationKind::kLinear : OperationKind::kAddNorm,
                          project ? linear : sublayer + "_add", inner, out);
    op.residual = residual;
    return out;
  }
  int value = inner;
  if (project) {
    value = b.slot(sublayer + "_projected", h, Lifetime::kSaved, false);
    b.add(OperationKind::kLinear, linear, inner, value);
  }
  auto stats = b.norm_statistics(sublayer + "_post_norm", layer.norm);
  const int out = b.slot(sublayer + "_out", h, Lifetime::kSaved, false);
  Operation& op = b.add(OperationKind::kAddNorm, sublayer + "_post_norm", value, out);
  op.residual = residual;
  op.extra = std::move(stats);
  return out;
}

UnitOperations layer_operations(const ModelSpec& model, const Unit& unit, const TensorSplit& split,
                                const ContextSplit& context, const DroppedTensors& dropped) {
  const LayerSpec& layer = model.layers[static_cast<size_t>(unit.layer)];
  const int64_t h = model.hidden;
  OperationBuilder b(model, unit, split);
  int stream = b.slot("input", h, Lifetime::kInput, false);
  const auto normed = [&](const std::string& name) {
    if (layer.single_norm) return b.norm("norm", layer.norm, stream, h);
    return layer.pre_norm ? b.norm(name, layer.norm, stream, h) : stream;
  };
  if (layer.mixer.kind != MixerKind::kNone) {
    const int input = normed("attention_norm");
    const bool dense = layer.mixer.kind == MixerKind::kAttention;
    const int inner = dense ? add_attention(b, layer.mixer, context, input) : add_block_mixer(b, layer.mixer, input);
    stream = add_projection(b, layer, "attention", "out", inner, stream, h);
  }
  if (layer.mlp.kind != MlpKind::kNone) {
    const int input = normed("mlp_norm");
    const bool moe = layer.mlp.kind == MlpKind::kMoe;
    const int inner = moe ? add_moe(b, layer.mlp, h, input) : add_mlp_inner(b, layer.mlp, input);
    stream = add_projection(b, layer, "mlp", moe ? "" : "down", inner, stream, h);
  }
  UnitOperations operations = b.finish(stream);
  drop_tensors(dropped, operations);
  return operations;
}

}  // namespace

UnitOperations unit_operations(const ModelSpec& model, const Inventory& inventory, int unit_index,
                               const TensorSplit& split, const ContextSplit& context, const DroppedTensors& dropped) {
  const Unit& unit = inventory.units[static_cast<size_t>(unit_index)];
  OperationBuilder b(model, unit, split);
  switch (unit.kind) {
    case UnitKind::kLayer:
      return layer_operations(model, unit, split, context, dropped);
    case UnitKind::kEmbedding: {
      const int output = b.slot("output", model.hidden, Lifetime::kOutput, false);
      Operation& op = b.add(OperationKind::kEmbedding, "tokens", -1, output);
      op.weight2 = unit.find("positions.weight");
      return b.finish(output);
    }
    case UnitKind::kHead: {
      const int input = b.slot("input", model.hidden, Lifetime::kInput, false);
      auto stats = b.norm_statistics("norm", model.final_norm);
      // One for each row of the vocabulary that this rank holds, padding excluded.
      const int64_t rows = inventory.units[0].parameters[0].slices.front().rows;
      const int logits = b.slot("logits", rows, Lifetime::kRebuilt, true);
      Operation& norm = b.add(OperationKind::kNorm, "norm", input, -1);
      norm.extra = std::move(stats);
      b.add(OperationKind::kLoss, "output", input, logits);
      return b.finish(logits);
    }
  }
  FIVEFOLD_CHECK(false);
}

const std::vector<Rebuild::Again>& UnitOperations::rebuilt_before(size_t operation) const {
  static const std::vector<Rebuild::Again> kNothing;
  for (const Rebuild& rebuild : rebuilds)
    if (rebuild.before == static_cast<int>(operation)) return rebuild.operations;
  return kNothing;
}

int64_t saved_bytes(const SavedTensor& tensor, const TapeShape& shape) {
  if (tensor.per_feature) return tensor.bytes_per_token;
  return (tensor.split_by_tp ? shape.tokens : shape.stream_tokens()) * tensor.bytes_per_token;
}

std::vector<SavedTensor> saved_tensors(const UnitOperations& operations, const std::string& unit_name, DType compute) {
  std::vector<SavedTensor> saved;
  if (operations.kind != UnitKind::kLayer) return saved;
  for (const Slot& slot : operations.slots) {
    if (slot.lifetime != Lifetime::kSaved && slot.lifetime != Lifetime::kInput) continue;
    saved.push_back({unit_name + "." + slot.name, slot.width * (slot.fp32 ? 4 : dtype_bytes(compute)), slot.split_by_tp,
                     slot.name_to_drop, slot.per_feature});
  }
  return saved;
}

}  // namespace fivefold
