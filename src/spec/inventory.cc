#include "spec/inventory.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/integer.h"
#include "spec/names.h"
#include "spec/quantized_layout.h"

namespace fivefold {
namespace {

// Builds the entries of one unit, in buffer order.
class UnitBuilder {
 public:
  UnitBuilder(UnitKind kind, int64_t layer, std::string name, const HubNames& names, double init_std)
      : names_(names), init_std_(init_std) {
    unit_.kind = kind;
    unit_.layer = layer;
    unit_.name = std::move(name);
  }

  struct Piece {
    std::string key;  // role, looked up in the naming table
    int64_t rows;
  };

  ParameterEntry& matrix(const std::string& suffix, std::vector<Piece> pieces, int64_t cols, Split split) {
    ParameterEntry& entry = add(suffix, std::move(pieces), split);
    entry.shape = {entry.shape[0], cols};
    entry.init_std = init_std_;
    for (HubPart& part : entry.parts) part.transposed = names_.transposed(unit_.kind, suffix);
    return entry;
  }
  ParameterEntry& vector(const std::string& suffix, std::vector<Piece> pieces, Split split, Initializer initializer) {
    ParameterEntry& entry = add(suffix, std::move(pieces), split);
    entry.decay = DecayClass::kVector;
    entry.initializer = initializer;
    return entry;
  }
  void norm(const std::string& suffix, const NormSpec& spec, int64_t width,
            ReplicatedGrad grad = ReplicatedGrad::kPartialOfSequence) {
    vector(suffix + ".weight", {{suffix + ".weight", width}}, Split::kReplicated,
           spec.weight_plus_one ? Initializer::kZeros : Initializer::kOnes)
        .replicated_grad = grad;
    if (!spec.bias) return;
    vector(suffix + ".bias", {{suffix + ".bias", width}}, Split::kReplicated, Initializer::kZeros).replicated_grad =
        grad;
  }
  void linear(const std::string& suffix, const std::vector<Piece>& pieces, int64_t in, Split split, bool bias) {
    std::vector<Piece> weights, biases;
    for (const Piece& piece : pieces) {
      weights.push_back({piece.key + ".weight", piece.rows});
      biases.push_back({piece.key + ".bias", piece.rows});
    }
    matrix(suffix + ".weight", weights, in, split);
    // The bias of a row-split linear is added once, after the reduction: replicated.
    if (bias) vector(suffix + ".bias", biases, split == Split::kRow ? Split::kReplicated : split, Initializer::kZeros);
  }
  void mark_expert() { unit_.parameters.back().expert = true; }

  Unit finish(const ModelSpec& model) {
    if (model.adapter) attach_adapter(unit_, *model.adapter);
    for (ParameterEntry& entry : unit_.parameters) {
      entry.whole_shape = entry.shape;
      entry.slices = {{.row = 0, .rows = entry.rows(), .whole_row = 0, .cols = entry.cols()}};
    }
    lay_out(unit_, model.adapter && model.adapter->double_quantization);
    return std::move(unit_);
  }

 private:
  ParameterEntry& add(const std::string& suffix, std::vector<Piece> pieces, Split split) {
    ParameterEntry entry;
    entry.name = unit_.name + "." + suffix;
    entry.split = split;
    int64_t rows = 0;
    for (const Piece& piece : pieces) {
      FIVEFOLD_CHECK(piece.rows > 0, entry.name);
      entry.parts.push_back({names_.hub_name(unit_.kind, unit_.layer, piece.key), rows, piece.rows, false});
      entry.pieces.push_back(piece.rows);
      rows += piece.rows;
    }
    // Tables that store a packed tensor whole (GPT-2's c_attn) give every piece the same name: one part.
    const bool whole = std::all_of(entry.parts.begin(), entry.parts.end(),
                                   [&](const HubPart& part) { return part.name == entry.parts[0].name; });
    if (whole) entry.parts = {{entry.parts[0].name, 0, rows, false}};
    entry.shape = {rows};
    unit_.parameters.push_back(std::move(entry));
    return unit_.parameters.back();
  }

  const HubNames& names_;
  double init_std_;
  Unit unit_;
};

void add_attention(UnitBuilder& unit, const MixerSpec& m, int64_t h, const NormSpec& norm) {
  const int64_t q = m.num_heads * m.head_dim, kv = m.num_kv_heads * m.head_dim;
  unit.linear("qkv", {{"q", m.output_gate ? 2 * q : q}, {"k", kv}, {"v", kv}}, h, Split::kHeads, m.qkv_bias);
  if (m.qk_norm) {
    NormSpec head_norm = norm;
    head_norm.bias = false;
    unit.norm("q_norm", head_norm, m.head_dim, ReplicatedGrad::kPartial);
    unit.norm("k_norm", head_norm, m.head_dim, ReplicatedGrad::kPartial);
  }
  if (m.sinks) unit.vector("sinks", {{"sinks", m.num_heads}}, Split::kHeads, Initializer::kZeros);
  unit.linear("out", {{"out", h}}, q, Split::kRow, m.out_bias);
}

void add_latent_attention(UnitBuilder& unit, const MixerSpec& m, int64_t h) {
  const int64_t q_dim = m.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim);
  const NormSpec norm{};
  if (m.q_lora_rank > 0) {
    unit.linear("q_down", {{"q_down", m.q_lora_rank}}, h, Split::kReplicated, m.qkv_bias);
    unit.norm("q_latent_norm", norm, m.q_lora_rank);
    unit.linear("q_up", {{"q_up", q_dim}}, m.q_lora_rank, Split::kColumn, false);
  } else {
    unit.linear("q", {{"q", q_dim}}, h, Split::kColumn, false);
  }
  unit.linear("kv_down", {{"kv_down", m.kv_lora_rank + m.qk_rope_head_dim}}, h, Split::kReplicated, m.qkv_bias);
  unit.norm("kv_latent_norm", norm, m.kv_lora_rank);
  unit.linear("kv_up", {{"kv_up", m.num_heads * (m.qk_nope_head_dim + m.v_head_dim)}}, m.kv_lora_rank, Split::kColumn,
              false);
  unit.linear("out", {{"out", h}}, m.num_heads * m.v_head_dim, Split::kRow, m.out_bias);
}

void add_linear_attention(UnitBuilder& unit, const MixerSpec& m, int64_t h) {
  const int64_t key = m.linear_key_heads * m.linear_key_dim, value = m.linear_value_heads * m.linear_value_dim;
  unit.linear("in_qkvz", {{"in_qkvz", 2 * key + 2 * value}}, h, Split::kHeads, false);
  unit.linear("in_ba", {{"in_ba", 2 * m.linear_value_heads}}, h, Split::kHeads, false);
  unit.matrix("conv.weight", {{"conv.weight", 2 * key + value}}, m.conv_kernel, Split::kHeads);
  unit.vector("dt_bias", {{"dt_bias", m.linear_value_heads}}, Split::kHeads, Initializer::kOnes);
  unit.vector("a_log", {{"a_log", m.linear_value_heads}}, Split::kHeads, Initializer::kZeros);
  unit.norm("gate_norm", NormSpec{}, m.linear_value_dim);
  unit.linear("out", {{"out", h}}, value, Split::kRow, m.out_bias);
}

void add_mamba2(UnitBuilder& unit, const MixerSpec& m, int64_t h) {
  const int64_t inner = m.ssm_heads * m.ssm_head_dim, conv = inner + 2 * m.ssm_groups * m.ssm_state;
  unit.linear("in_proj", {{"in_proj", inner + conv + m.ssm_heads}}, h, Split::kHeads, m.ssm_proj_bias);
  unit.matrix("conv.weight", {{"conv.weight", conv}}, m.conv_kernel, Split::kHeads);
  if (m.ssm_conv_bias) unit.vector("conv.bias", {{"conv.bias", conv}}, Split::kHeads, Initializer::kZeros);
  unit.vector("dt_bias", {{"dt_bias", m.ssm_heads}}, Split::kHeads, Initializer::kOnes);
  unit.vector("a_log", {{"a_log", m.ssm_heads}}, Split::kHeads, Initializer::kZeros);
  unit.vector("d", {{"d", m.ssm_heads}}, Split::kHeads, Initializer::kOnes);
  unit.norm("gate_norm", NormSpec{}, inner);
  unit.linear("out", {{"out", h}}, inner, Split::kRow, m.ssm_proj_bias);
}

void add_moe(UnitBuilder& unit, const MlpSpec& m, int64_t h) {
  unit.linear("router", {{"router", m.num_experts}}, h, Split::kReplicated, m.router_bias);
  if (m.router_correction_bias)
    unit.vector("router.correction_bias", {{"router.correction_bias", m.num_experts}}, Split::kReplicated,
                Initializer::kZeros);
  const int64_t up = m.expert_gated ? 2 * m.expert_ffn : m.expert_ffn;
  unit.matrix("experts.up.weight", {{"experts.up.weight", m.num_experts * up}}, h, Split::kColumn);
  unit.mark_expert();
  if (m.expert_bias) {
    unit.vector("experts.up.bias", {{"experts.up.bias", m.num_experts * up}}, Split::kColumn, Initializer::kZeros);
    unit.mark_expert();
  }
  unit.matrix("experts.down.weight", {{"experts.down.weight", m.num_experts * h}}, m.expert_ffn, Split::kRow);
  unit.mark_expert();
  if (m.expert_bias) {
    unit.vector("experts.down.bias", {{"experts.down.bias", m.num_experts * h}}, Split::kReplicated,
                Initializer::kZeros);
    unit.mark_expert();
  }
  if (m.shared_ffn > 0) {
    const int64_t shared_up = m.expert_gated ? 2 * m.shared_ffn : m.shared_ffn;
    unit.linear("shared.up", {{"shared.up", shared_up}}, h, Split::kColumn, false);
    unit.linear("shared.down", {{"shared.down", h}}, m.shared_ffn, Split::kRow, false);
    if (m.shared_gate) unit.linear("shared.gate", {{"shared.gate", 1}}, h, Split::kReplicated, false);
  }
}

void add_mlp(UnitBuilder& unit, const MlpSpec& m, int64_t h) {
  switch (m.kind) {
    case MlpKind::kNone:
      return;
    case MlpKind::kMoe:
      return add_moe(unit, m, h);
    case MlpKind::kGated:
      unit.linear("gate_up", {{"gate", m.ffn}, {"up", m.ffn}}, h, Split::kColumn, m.bias);
      unit.linear("down", {{"down", h}}, m.ffn, Split::kRow, m.bias);
      return;
    case MlpKind::kPlain:
      unit.linear("up", {{"up", m.ffn}}, h, Split::kColumn, m.bias);
      unit.linear("down", {{"down", h}}, m.ffn, Split::kRow, m.bias);
      return;
  }
}

void add_mixer(UnitBuilder& unit, const LayerSpec& layer, int64_t h) {
  switch (layer.mixer.kind) {
    case MixerKind::kNone:
      return;
    case MixerKind::kAttention:
      return add_attention(unit, layer.mixer, h, layer.norm);
    case MixerKind::kLatentAttention:
      return add_latent_attention(unit, layer.mixer, h);
    case MixerKind::kLinearAttention:
      return add_linear_attention(unit, layer.mixer, h);
    case MixerKind::kMamba2:
      return add_mamba2(unit, layer.mixer, h);
  }
}

Unit build_layer(const ModelSpec& model, int64_t index, const HubNames& names) {
  const LayerSpec& layer = model.layers[static_cast<size_t>(index)];
  UnitBuilder unit(UnitKind::kLayer, index, "layers." + std::to_string(index), names, model.init_std);
  const bool has_mixer = layer.mixer.kind != MixerKind::kNone, has_mlp = layer.mlp.kind != MlpKind::kNone;
  if (layer.single_norm) {
    unit.norm("norm", layer.norm, model.hidden);
    add_mixer(unit, layer, model.hidden);
    add_mlp(unit, layer.mlp, model.hidden);
    return unit.finish(model);
  }
  if (has_mixer) {
    if (layer.pre_norm) unit.norm("attention_norm", layer.norm, model.hidden);
    add_mixer(unit, layer, model.hidden);
    if (layer.post_norm) unit.norm("attention_post_norm", layer.norm, model.hidden);
  }
  if (has_mlp) {
    if (layer.pre_norm) unit.norm("mlp_norm", layer.norm, model.hidden);
    add_mlp(unit, layer.mlp, model.hidden);
    if (layer.post_norm) unit.norm("mlp_post_norm", layer.norm, model.hidden);
  }
  return unit.finish(model);
}

}  // namespace

namespace {

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

}  // namespace

int64_t ParameterEntry::numel() const { return product(shape); }
int64_t ParameterEntry::whole_numel() const { return product(whole_shape); }

int64_t Unit::padded_numel(int64_t shards) const { return round_up(aligned_numel, kParameterAlignment * shards); }
int64_t Unit::padded_frozen_numel(int64_t shards) const { return round_up(frozen_numel, kParameterAlignment * shards); }
int64_t Unit::padded_four_bit_bytes(int64_t shards) const {
  return round_up(four_bit_bytes, kParameterAlignment * shards);
}

void lay_out(Unit& unit, bool double_quantization) {
  unit.numel = unit.aligned_numel = unit.frozen_numel = unit.four_bit_bytes = 0;
  for (ParameterEntry& entry : unit.parameters) {
    const bool four_bit = entry.storage == Storage::kFourBit;
    int64_t& end = four_bit ? unit.four_bit_bytes : entry.trained() ? unit.aligned_numel : unit.frozen_numel;
    entry.offset = end;
    unit.numel += entry.numel();
    end = round_up(end + (four_bit ? four_bit_bytes(entry, double_quantization) : entry.numel()), kParameterAlignment);
  }
}

int Unit::find(const std::string& suffix) const {
  for (size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].name == name + "." + suffix) return static_cast<int>(i);
  return -1;
}

int64_t Inventory::num_parameters() const {
  int64_t n = 0;
  for (const Unit& unit : units) n += unit.numel;
  return n;
}

int64_t Inventory::num_trained() const {
  int64_t n = 0;
  for (const Unit& unit : units)
    for (const ParameterEntry& entry : unit.parameters)
      if (entry.trained()) n += entry.numel();
  return n;
}

Unit build_unit(const ModelSpec& model, int unit) {
  const HubNames& names = hub_names(model.naming);
  const int num_layers = static_cast<int>(model.layers.size());
  FIVEFOLD_CHECK(0 <= unit && unit < num_layers + 2);
  if (unit == 0) {
    UnitBuilder embedding(UnitKind::kEmbedding, -1, "embedding", names, model.init_std);
    embedding.matrix("tokens.weight", {{"tokens.weight", model.vocab}}, model.hidden, Split::kVocabulary);
    if (model.learned_positions)
      embedding.matrix("positions.weight", {{"positions.weight", model.max_positions}}, model.hidden,
                       Split::kReplicated);
    return embedding.finish(model);
  }
  if (unit <= num_layers) return build_layer(model, unit - 1, names);
  UnitBuilder head(UnitKind::kHead, -1, "head", names, model.init_std);
  head.norm("norm", model.final_norm, model.hidden);
  if (!model.tied_embeddings)
    head.linear("output", {{"output", model.vocab}}, model.hidden, Split::kVocabulary, model.embedding_bias_head);
  return head.finish(model);
}

Inventory build_inventory(const ModelSpec& model) {
  Inventory inventory;
  inventory.tied_embeddings = model.tied_embeddings;
  for (int unit = 0; unit < static_cast<int>(model.layers.size()) + 2; ++unit)
    inventory.units.push_back(build_unit(model, unit));
  return inventory;
}

ShardRange shard_range(const Unit& unit, const ParameterEntry& parameter, int64_t shards, int64_t shard) {
  FIVEFOLD_CHECK(parameter.storage != Storage::kFourBit, parameter.name);
  const int64_t padded = parameter.trained() ? unit.padded_numel(shards) : unit.padded_frozen_numel(shards);
  const int64_t shard_numel = padded / shards;
  const int64_t shard_begin = shard * shard_numel, shard_end = shard_begin + shard_numel;
  const int64_t begin = std::max(parameter.offset, shard_begin);
  const int64_t end = std::min(parameter.offset + parameter.numel(), shard_end);
  if (begin >= end) return {};
  return {begin - parameter.offset, end - parameter.offset, begin - shard_begin};
}

}  // namespace fivefold
