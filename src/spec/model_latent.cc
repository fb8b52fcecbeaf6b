// Families of config.json with latent attention (MLA): DeepSeek-V2 and DeepSeek-V3.
#include <fmt/format.h>

#include <cmath>

#include "spec/model_family.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

struct LatentDefaults {
  FamilyDefaults base;
  int64_t shared_experts, first_dense, groups, groups_per_token;
  bool normalize_weights;
  double routed_scaling;
};
constexpr LatentDefaults kV2{{.max_positions = 2048}, 2, 0, 1, 1, false, 1.0};
constexpr LatentDefaults kV3{{.max_positions = 4096}, 1, 3, 8, 4, true, 2.5};

// YaRN stretches the scores too: 1 / sqrt(d) times the square of 1 + 0.1 mscale_all_dim ln(factor).
double latent_softmax_scale(const MixerSpec& m) {
  if (m.rope.scaling != RopeScaling::kYarn || m.rope.mscale_all_dim == 0.0 || m.rope.factor <= 1.0) return 0.0;
  const double stretch = 0.1 * m.rope.mscale_all_dim * std::log(m.rope.factor) + 1.0;
  return stretch * stretch / std::sqrt(static_cast<double>(m.head_dim));
}

MixerSpec read_latent_attention(ModelReader& reader, const LatentDefaults& defaults, const ModelSpec& model) {
  MixerSpec m;
  m.kind = MixerKind::kLatentAttention;
  m.num_heads = m.num_kv_heads = reader.integer("num_attention_heads", kHeadRange);
  // Keys and values are made per head from the latent: num_key_value_heads says the same number or nothing.
  if (reader.integer_or("num_key_value_heads", m.num_heads, kHeadRange) != m.num_heads)
    reader.fail("num_key_value_heads", "latent attention has as many kv heads as heads",
                fmt::format("{}", m.num_heads));
  m.q_lora_rank = reader.has_null("q_lora_rank") ? 0 : reader.integer_or("q_lora_rank", 1536);
  m.kv_lora_rank = reader.integer_or("kv_lora_rank", 512);
  m.qk_nope_head_dim = reader.integer_or("qk_nope_head_dim", 128);
  m.qk_rope_head_dim = reader.integer_or("qk_rope_head_dim", 64);
  m.v_head_dim = reader.integer_or("v_head_dim", 128);
  m.head_dim = m.qk_nope_head_dim + m.qk_rope_head_dim;
  m.qkv_bias = m.out_bias = reader.boolean_or("attention_bias", false);
  m.rope = read_rope(reader, defaults.base, model.max_positions, m.qk_rope_head_dim);
  m.rope.interleaved = reader.boolean_or("rope_interleave", true);
  m.softmax_scale = latent_softmax_scale(m);
  return m;
}

// Group-limited routing: the experts of the best groups only.
void read_groups(ModelReader& reader, const LatentDefaults& defaults, MlpSpec& mlp) {
  mlp.expert_groups = reader.integer_or("n_group", defaults.groups, kExpertRange);
  mlp.groups_per_token = reader.integer_or("topk_group", defaults.groups_per_token, kExpertRange);
  if (mlp.num_experts % mlp.expert_groups != 0)
    reader.fail("n_group", fmt::format("{} groups do not divide {} experts", mlp.expert_groups, mlp.num_experts));
  if (mlp.groups_per_token > mlp.expert_groups)
    reader.fail("topk_group", fmt::format("{} groups per token of {} groups", mlp.groups_per_token, mlp.expert_groups),
                fmt::format("at most {}", mlp.expert_groups));
}

MlpSpec read_latent_experts(ModelReader& reader, const LatentDefaults& defaults) {
  MlpSpec mlp;
  mlp.kind = MlpKind::kMoe;
  read_experts(reader, {"n_routed_experts"}, mlp);
  mlp.expert_ffn = reader.integer("moe_intermediate_size");
  mlp.shared_ffn = mlp.expert_ffn * reader.integer_or("n_shared_experts", defaults.shared_experts, {0, 1 << 10});
  mlp.normalize_weights = reader.boolean_or("norm_topk_prob", defaults.normalize_weights);
  mlp.routed_scaling = reader.number_or("routed_scaling_factor", defaults.routed_scaling, 0.0, 1e6);
  read_groups(reader, defaults, mlp);
  return mlp;
}

void parse_latent(ModelReader& reader, ModelSpec& model, const LatentDefaults& defaults, MlpSpec experts) {
  read_base(reader, defaults.base, model);
  LayerSpec layer;
  layer.norm = model.final_norm;
  layer.mixer = read_latent_attention(reader, defaults, model);
  layer.mlp.activation = experts.activation = read_activation(reader, "hidden_act", "silu");
  const int64_t num_layers = reader.integer("num_hidden_layers", kLayerRange);
  const int64_t first = reader.integer_or("first_k_dense_replace", defaults.first_dense, {0, kLayerRange.max});
  if (first >= num_layers)
    reader.fail("first_k_dense_replace",
                fmt::format("{} dense layers of {} leave none with experts", first, num_layers),
                fmt::format("at most {}", num_layers - 1));
  if (reader.integer_or("moe_layer_freq", 1, kLayerRange) != 1)
    reader.fail("moe_layer_freq", "only 1 is supported: every layer after the dense ones has experts");
  if (first > 0) layer.mlp.ffn = reader.integer("intermediate_size");
  const LayerSpec dense = layer;
  layer.mlp = experts;
  for (int64_t i = 0; i < num_layers; ++i) model.layers.push_back(i >= first ? layer : dense);
}

void parse_deepseek_v2(ModelReader& reader, ModelSpec& model) {
  MlpSpec experts = read_latent_experts(reader, kV2);
  experts.router = RouterKind::kSoftmaxTopK;
  const std::string method = reader.text_or("topk_method", "greedy");
  if (method == "greedy") {
    experts.expert_groups = experts.groups_per_token = 1;
  } else if (method != "group_limited_greedy") {
    reader.fail("topk_method", "unknown method \"" + method + "\"", "known: greedy, group_limited_greedy");
  }
  parse_latent(reader, model, kV2, experts);
}

void parse_deepseek_v3(ModelReader& reader, ModelSpec& model) {
  MlpSpec experts = read_latent_experts(reader, kV3);
  experts.router = RouterKind::kSigmoid;
  experts.router_correction_bias = true;
  const std::string scoring = reader.text_or("scoring_func", "sigmoid"),
                    method = reader.text_or("topk_method", "noaux_tc");
  if (scoring != "sigmoid") reader.fail("scoring_func", "\"" + scoring + "\" is not supported", "sigmoid");
  if (method != "noaux_tc") reader.fail("topk_method", "\"" + method + "\" is not supported", "noaux_tc");
  model.num_mtp_layers = reader.integer_or("num_nextn_predict_layers", 0, {0, kLayerRange.max});
  parse_latent(reader, model, kV3, experts);
}

void write_latent(const ModelSpec& model, Json& config) {
  const LayerSpec& layer = first_layer(model, [](const LayerSpec& l) { return l.mlp.kind == MlpKind::kMoe; });
  const MixerSpec& m = layer.mixer;
  const MlpSpec& mlp = layer.mlp;
  write_base(model, config);
  config["num_attention_heads"] = m.num_heads;
  config["num_key_value_heads"] = m.num_kv_heads;
  config["q_lora_rank"] = m.q_lora_rank > 0 ? Json(m.q_lora_rank) : Json(nullptr);
  config["kv_lora_rank"] = m.kv_lora_rank;
  config["qk_nope_head_dim"] = m.qk_nope_head_dim;
  config["qk_rope_head_dim"] = m.qk_rope_head_dim;
  config["v_head_dim"] = m.v_head_dim;
  config["attention_bias"] = m.qkv_bias;
  write_rope(m.rope, config);
  config["rope_interleave"] = m.rope.interleaved;
  config["hidden_act"] = activation_name(mlp.activation);
  config["n_routed_experts"] = mlp.num_experts;
  config["num_experts_per_tok"] = mlp.experts_per_token;
  config["moe_intermediate_size"] = mlp.expert_ffn;
  config["n_shared_experts"] = mlp.shared_ffn / mlp.expert_ffn;
  config["norm_topk_prob"] = mlp.normalize_weights;
  config["routed_scaling_factor"] = mlp.routed_scaling;
  config["n_group"] = mlp.expert_groups;
  config["topk_group"] = mlp.groups_per_token;
  config["first_k_dense_replace"] = 0;
  for (size_t i = 0; model.layers[i].mlp.kind != MlpKind::kMoe; ++i) {
    config["first_k_dense_replace"] = i + 1;
    config["intermediate_size"] = model.layers[i].mlp.ffn;
  }
}

void write_deepseek_v2(const ModelSpec& model, Json& config) {
  write_latent(model, config);
  config["scoring_func"] = "softmax";
  config["topk_method"] = config["n_group"] == 1 ? "greedy" : "group_limited_greedy";
}

void write_deepseek_v3(const ModelSpec& model, Json& config) {
  write_latent(model, config);
  config["scoring_func"] = "sigmoid";
  config["topk_method"] = "noaux_tc";
  config["num_nextn_predict_layers"] = model.num_mtp_layers;
}

}  // namespace

std::vector<ModelFamily> latent_families() {
  return {{"DeepseekV2ForCausalLM", "deepseek_v2", parse_deepseek_v2, write_deepseek_v2},
          {"DeepseekV3ForCausalLM", "deepseek_v3", parse_deepseek_v3, write_deepseek_v3}};
}

}  // namespace fivefold
