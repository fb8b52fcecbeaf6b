// Hybrids in config.json: Qwen3-Next (gated delta rule and attention) and Nemotron-H (Mamba-2, attention, MLP and
// experts as layers of their own).
#include <fmt/format.h>

#include "base/text.h"
#include "spec/model_family.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLinearAttention = "linear_attention";

bool is_linear(const LayerSpec& layer) { return layer.mixer.kind == MixerKind::kLinearAttention; }
bool is_attention(const LayerSpec& layer) { return layer.mixer.kind == MixerKind::kAttention; }

MixerSpec read_delta_rule(ModelReader& reader) {
  MixerSpec m;
  m.kind = MixerKind::kLinearAttention;
  m.has_rope = false;
  m.linear_key_heads = reader.integer_or("linear_num_key_heads", 16, kHeadRange);
  m.linear_value_heads = reader.integer_or("linear_num_value_heads", 32, kHeadRange);
  m.linear_key_dim = reader.integer_or("linear_key_head_dim", 128, kHeadRange);
  m.linear_value_dim = reader.integer_or("linear_value_head_dim", 128, kHeadRange);
  m.conv_kernel = reader.integer_or("linear_conv_kernel_dim", 4, {1, 64});
  if (m.linear_value_heads % m.linear_key_heads != 0)
    reader.fail("linear_num_key_heads",
                fmt::format("{} key heads do not divide {} value heads", m.linear_key_heads, m.linear_value_heads));
  return m;
}

void parse_qwen3_next(ModelReader& reader, ModelSpec& model) {
  const FamilyDefaults defaults{
      .heads = 16, .kv_heads = 2, .head_dim = 256, .max_positions = 32768, .partial_rotary_factor = 0.25};
  read_base(reader, defaults, model);
  model.final_norm.weight_plus_one = true;
  LayerSpec attention;
  attention.norm = model.final_norm;
  attention.mixer = read_attention(reader, defaults, model);
  attention.mixer.qkv_bias = attention.mixer.out_bias = reader.boolean_or("attention_bias", false);
  attention.mixer.qk_norm = attention.mixer.output_gate = true;
  LayerSpec linear = attention;
  linear.mixer = read_delta_rule(reader);
  const int64_t num_layers = reader.integer("num_hidden_layers", kLayerRange);
  const int64_t interval = reader.integer_or("full_attention_interval", 4, kLayerRange);
  std::vector<std::string> types;
  for (int64_t i = 0; i < num_layers; ++i)
    types.emplace_back((i + 1) % interval != 0 ? kLinearAttention : kFullAttention);
  types = read_layer_types(reader, types, {kFullAttention, kLinearAttention});
  for (const std::string& type : types) model.layers.push_back(type == kLinearAttention ? linear : attention);
  MlpSpec experts;
  experts.normalize_weights = reader.boolean_or("norm_topk_prob", true);
  experts.shared_ffn = reader.integer_or("shared_expert_intermediate_size", 512);
  experts.shared_gate = true;
  read_qwen_experts(reader, model, experts);
}

void write_qwen3_next(const ModelSpec& model, Json& config) {
  write_base(model, config);
  config["layer_types"] = Json::array();
  for (const LayerSpec& layer : model.layers) {
    config["layer_types"].push_back(is_linear(layer) ? kLinearAttention : kFullAttention);
    if (is_linear(layer)) {
      config["linear_num_key_heads"] = layer.mixer.linear_key_heads;
      config["linear_num_value_heads"] = layer.mixer.linear_value_heads;
      config["linear_key_head_dim"] = layer.mixer.linear_key_dim;
      config["linear_value_head_dim"] = layer.mixer.linear_value_dim;
      config["linear_conv_kernel_dim"] = layer.mixer.conv_kernel;
    } else {
      config["partial_rotary_factor"] = 1.0;  // the family's default is a quarter
      write_attention(layer.mixer, config);
      config["attention_bias"] = layer.mixer.qkv_bias;
    }
  }
  write_qwen_experts(model, config);
}

// The kinds of a Nemotron-H layer: the character of hybrid_override_pattern and the word of layers_block_type.
struct BlockKind {
  char letter;
  const char* name;
  const char* older_name;
};
constexpr BlockKind kBlockKinds[] = {
    {'M', "linear_attention", "mamba"}, {'*', "full_attention", "attention"}, {'-', "mlp", "mlp"}, {'E', "moe", "moe"}};

// One letter per layer, from either spelling.
std::string read_pattern(ModelReader& reader) {
  std::string pattern = reader.text_or("hybrid_override_pattern", "");
  const char* key = "hybrid_override_pattern";
  if (reader.has("layers_block_type")) {
    key = "layers_block_type";
    pattern.clear();
    for (const std::string& name : reader.texts_or_empty(key)) {
      char letter = '?';
      for (const BlockKind& kind : kBlockKinds)
        if (name == kind.name || name == kind.older_name) letter = kind.letter;
      if (letter == '?')
        reader.fail(key, fmt::format("unknown layer type \"{}\"", name), "known: mamba, attention, mlp, moe");
      pattern += letter;
    }
  }
  if (pattern.empty()) reader.fail(key, "missing", "one of M, *, - and E per layer");
  if (static_cast<int64_t>(pattern.size()) > kLayerRange.max)
    reader.fail(key, fmt::format("{} layers are out of range", pattern.size()),
                fmt::format("1 to {}", kLayerRange.max));
  const auto length = static_cast<int64_t>(pattern.size());
  if (const int64_t stated = reader.integer_or("num_hidden_layers", length, kLayerRange); stated != length)
    reader.fail(key, fmt::format("{} entries for {} layers", length, stated), "one per layer");
  for (const char letter : pattern)
    if (std::string_view("M*-E").find(letter) == std::string_view::npos)
      reader.fail(key, fmt::format("unknown layer letter '{}'", letter), "known: M, *, -, E");
  return pattern;
}

MixerSpec read_mamba2(ModelReader& reader) {
  MixerSpec m;
  m.kind = MixerKind::kMamba2;
  m.has_rope = false;
  m.ssm_heads = reader.integer_or("mamba_num_heads", 128, kHeadRange);
  m.ssm_head_dim = reader.integer_or("mamba_head_dim", 64, kHeadRange);
  m.ssm_state = reader.integer_or("ssm_state_size", 128, kHeadRange);
  m.ssm_groups = reader.integer_or("n_groups", 8, kHeadRange);
  m.conv_kernel = reader.integer_or("conv_kernel", 4, {1, 64});
  m.ssm_conv_bias = reader.boolean_or("use_conv_bias", true);
  m.ssm_proj_bias = reader.boolean_or("use_bias", false);
  if (m.ssm_heads % m.ssm_groups != 0)
    reader.fail("n_groups", fmt::format("{} groups do not divide {} Mamba heads", m.ssm_groups, m.ssm_heads));
  return m;
}

MlpSpec read_nemotron_experts(ModelReader& reader) {
  MlpSpec m;
  m.kind = MlpKind::kMoe;
  read_experts(reader, {"n_routed_experts"}, m);
  m.expert_ffn = reader.integer("moe_intermediate_size");
  m.expert_gated = false;
  // The shared expert has one width, whatever n_shared_experts says.
  m.shared_ffn = reader.integer_or("moe_shared_expert_intermediate_size", 7688);
  m.router = RouterKind::kSigmoid;
  m.router_correction_bias = true;
  m.normalize_weights = reader.boolean_or("norm_topk_prob", true);
  m.routed_scaling = reader.number_or("routed_scaling_factor", 1.0, 0.0, 1e6);
  m.expert_groups = reader.integer_or("n_group", 1, kExpertRange);
  m.groups_per_token = reader.integer_or("topk_group", 1, kExpertRange);
  if (reader.has("moe_latent_size")) reader.fail("moe_latent_size", "experts on a latent projection are not supported");
  return m;
}

void parse_nemotron_h(ModelReader& reader, ModelSpec& model) {
  const FamilyDefaults defaults{
      .kv_heads = 8, .head_dim = 128, .max_positions = 4096, .norm_eps = 1e-5, .norm_eps_key = "layer_norm_epsilon"};
  read_base(reader, defaults, model);
  const std::string pattern = read_pattern(reader);
  const Activation activation = read_activation(reader, "mlp_hidden_act", "relu2");
  const bool mlp_bias = reader.boolean_or("mlp_bias", false);
  if (mlp_bias && pattern.find('E') != std::string::npos)
    reader.fail("mlp_bias", "true is not supported beside experts");
  for (const char letter : pattern) {
    LayerSpec layer;
    layer.norm = model.final_norm;
    layer.single_norm = true;
    layer.mixer.kind = MixerKind::kNone;
    layer.mixer.has_rope = false;
    layer.mlp.kind = MlpKind::kNone;
    if (letter == 'M') layer.mixer = read_mamba2(reader);
    if (letter == '*') {
      layer.mixer = read_attention(reader, defaults, model);
      // Positions come from the Mamba layers; rope_theta in the file is not used.
      layer.mixer.has_rope = false;
      layer.mixer.rope = RopeSpec{};
      layer.mixer.qkv_bias = layer.mixer.out_bias = reader.boolean_or("attention_bias", false);
    }
    if (letter == '-')
      layer.mlp = {.kind = MlpKind::kPlain, .ffn = reader.integer("intermediate_size"), .bias = mlp_bias};
    if (letter == 'E') layer.mlp = read_nemotron_experts(reader);
    layer.mlp.activation = activation;
    model.layers.push_back(layer);
  }
}

void write_nemotron_layer(const LayerSpec& layer, Json& config) {
  const MixerSpec& m = layer.mixer;
  const MlpSpec& mlp = layer.mlp;
  if (is_attention(layer)) {
    write_attention(m, config);
    config["attention_bias"] = m.qkv_bias;
  } else if (m.kind == MixerKind::kMamba2) {
    config["mamba_num_heads"] = m.ssm_heads;
    config["mamba_head_dim"] = m.ssm_head_dim;
    config["ssm_state_size"] = m.ssm_state;
    config["n_groups"] = m.ssm_groups;
    config["conv_kernel"] = m.conv_kernel;
    config["use_conv_bias"] = m.ssm_conv_bias;
    config["use_bias"] = m.ssm_proj_bias;
  } else if (mlp.kind == MlpKind::kPlain) {
    config["intermediate_size"] = mlp.ffn;
    config["mlp_bias"] = mlp.bias;
  } else if (mlp.kind == MlpKind::kMoe) {
    config["n_routed_experts"] = mlp.num_experts;
    config["num_experts_per_tok"] = mlp.experts_per_token;
    config["moe_intermediate_size"] = mlp.expert_ffn;
    config["moe_shared_expert_intermediate_size"] = mlp.shared_ffn;
    config["norm_topk_prob"] = mlp.normalize_weights;
    config["routed_scaling_factor"] = mlp.routed_scaling;
    config["n_group"] = mlp.expert_groups;
    config["topk_group"] = mlp.groups_per_token;
  }
}

char layer_letter(const LayerSpec& layer) {
  if (layer.mixer.kind == MixerKind::kMamba2) return 'M';
  if (is_attention(layer)) return '*';
  return layer.mlp.kind == MlpKind::kMoe ? 'E' : '-';
}

void write_nemotron_h(const ModelSpec& model, Json& config) {
  write_base(model, config);
  config.erase("rms_norm_eps");
  config["layer_norm_epsilon"] = model.final_norm.eps;
  std::string pattern;
  for (const LayerSpec& layer : model.layers) {
    pattern += layer_letter(layer);
    write_nemotron_layer(layer, config);
  }
  config["hybrid_override_pattern"] = pattern;
  config["mlp_hidden_act"] = activation_name(model.layers.front().mlp.activation);
}

}  // namespace

std::vector<ModelFamily> hybrid_families() {
  return {{"Qwen3NextForCausalLM", "qwen3_next", parse_qwen3_next, write_qwen3_next},
          {"NemotronHForCausalLM", "nemotron_h", parse_nemotron_h, write_nemotron_h}};
}

}  // namespace fivefold
