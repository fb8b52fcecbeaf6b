// Mixture-of-experts families of config.json with plain attention: Mixtral, Qwen2-MoE, Qwen3-MoE, gpt-oss.
#include <fmt/format.h>

#include <algorithm>

#include "spec/model_family.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

bool has_experts(const LayerSpec& layer) { return layer.mlp.kind == MlpKind::kMoe; }
bool is_dense(const LayerSpec& layer) { return layer.mlp.kind == MlpKind::kGated; }

void parse_mixtral(ModelReader& reader, ModelSpec& model) {
  const FamilyDefaults defaults{.kv_heads = 8, .max_positions = 4096 * 32, .norm_eps = 1e-5, .rope_theta = 1000000.0};
  read_base(reader, defaults, model);
  LayerSpec layer;
  layer.norm = model.final_norm;
  layer.mixer = read_attention(reader, defaults, model);
  layer.mixer.window = reader.integer_or("sliding_window", 0, kWindowRange);
  layer.mlp.kind = MlpKind::kMoe;
  layer.mlp.activation = read_activation(reader, "hidden_act", "silu");
  layer.mlp.expert_ffn = reader.integer("intermediate_size");
  read_experts(reader, {"num_local_experts", "num_experts"}, layer.mlp);
  model.layers.assign(static_cast<size_t>(reader.integer("num_hidden_layers", kLayerRange)), layer);
}

void write_mixtral(const ModelSpec& model, Json& config) {
  const LayerSpec& layer = model.layers.front();
  write_base(model, config);
  write_attention(layer.mixer, config);
  config["sliding_window"] = layer.mixer.window > 0 ? Json(layer.mixer.window) : Json(nullptr);
  config["hidden_act"] = activation_name(layer.mlp.activation);
  config["intermediate_size"] = layer.mlp.expert_ffn;
  config["num_local_experts"] = layer.mlp.num_experts;
  config["num_experts_per_tok"] = layer.mlp.experts_per_token;
}

// Which layers have experts: every decoder_sparse_step-th, except those that mlp_only_layers names.
std::vector<bool> read_sparse_layers(ModelReader& reader, int64_t num_layers) {
  const int64_t step = reader.integer_or("decoder_sparse_step", 1, kLayerRange);
  std::vector<bool> sparse;
  for (int64_t i = 0; i < num_layers; ++i) sparse.push_back((i + 1) % step == 0);
  for (const int64_t i : reader.integers_or_empty("mlp_only_layers", {0, num_layers - 1}))
    sparse[static_cast<size_t>(i)] = false;
  return sparse;
}

}  // namespace

void read_qwen_experts(ModelReader& reader, ModelSpec& model, MlpSpec experts) {
  MlpSpec dense;
  dense.activation = experts.activation = read_activation(reader, "hidden_act", "silu");
  read_experts(reader, {"num_experts", "num_local_experts"}, experts);
  experts.kind = MlpKind::kMoe;
  experts.expert_ffn = reader.integer("moe_intermediate_size");
  const std::vector<bool> sparse = read_sparse_layers(reader, static_cast<int64_t>(model.layers.size()));
  if (std::find(sparse.begin(), sparse.end(), true) == sparse.end())
    reader.fail(reader.has("mlp_only_layers") ? "mlp_only_layers" : "decoder_sparse_step",
                "leaves no layer with experts");
  // The dense width is only needed where a layer has no experts.
  if (std::find(sparse.begin(), sparse.end(), false) != sparse.end()) dense.ffn = reader.integer("intermediate_size");
  for (size_t i = 0; i < sparse.size(); ++i) model.layers[i].mlp = sparse[i] ? experts : dense;
}

void write_qwen_experts(const ModelSpec& model, Json& config) {
  const MlpSpec& experts = first_layer(model, has_experts).mlp;
  config["hidden_act"] = activation_name(experts.activation);
  config["num_experts"] = experts.num_experts;
  config["num_experts_per_tok"] = experts.experts_per_token;
  config["moe_intermediate_size"] = experts.expert_ffn;
  config["norm_topk_prob"] = experts.normalize_weights;
  if (experts.shared_ffn > 0) config["shared_expert_intermediate_size"] = experts.shared_ffn;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = Json::array();
  for (size_t i = 0; i < model.layers.size(); ++i) {
    if (!is_dense(model.layers[i])) continue;
    config["mlp_only_layers"].push_back(i);
    config["intermediate_size"] = model.layers[i].mlp.ffn;
  }
}

namespace {

void parse_qwen2_moe(ModelReader& reader, ModelSpec& model) {
  const FamilyDefaults defaults{.kv_heads = 16, .max_positions = 32768};
  read_base(reader, defaults, model);
  LayerSpec layer;
  layer.norm = model.final_norm;
  layer.mixer = read_attention(reader, defaults, model);
  layer.mixer.qkv_bias = reader.boolean_or("qkv_bias", true);
  const int64_t num_layers = reader.integer("num_hidden_layers", kLayerRange);
  model.layers.assign(static_cast<size_t>(num_layers), layer);
  // With use_sliding_window, every second layer below max_window_layers has the window.
  const bool windows = reader.boolean_or("use_sliding_window", false);
  const int64_t window = reader.integer_or("sliding_window", 4096, kWindowRange);
  const int64_t last = reader.integer_or("max_window_layers", 28, {0, kLayerRange.max});
  std::vector<std::string> types;
  for (int64_t i = 0; i < num_layers; ++i)
    types.emplace_back(windows && i % 2 == 0 && i < last ? kSlidingAttention : kFullAttention);
  types = read_layer_types(reader, types, {kFullAttention, kSlidingAttention});
  for (size_t i = 0; i < types.size(); ++i)
    if (windows && types[i] == kSlidingAttention) model.layers[i].mixer.window = window;
  MlpSpec experts;
  experts.normalize_weights = reader.boolean_or("norm_topk_prob", false);
  experts.shared_ffn = reader.integer_or("shared_expert_intermediate_size", 5632);
  experts.shared_gate = true;
  read_qwen_experts(reader, model, experts);
}

void write_qwen2_moe(const ModelSpec& model, Json& config) {
  write_base(model, config);
  write_attention(model.layers.front().mixer, config);
  config["qkv_bias"] = model.layers.front().mixer.qkv_bias;
  int64_t window = 0;
  for (const LayerSpec& layer : model.layers) window = std::max(window, layer.mixer.window);
  config["use_sliding_window"] = window > 0;
  if (window > 0) {
    config["sliding_window"] = window;
    config["layer_types"] = window_layer_types(model);
  }
  write_qwen_experts(model, config);
}

void parse_qwen3_moe(ModelReader& reader, ModelSpec& model) {
  const FamilyDefaults defaults{.kv_heads = 4, .max_positions = 32768};
  read_base(reader, defaults, model);
  LayerSpec layer;
  layer.norm = model.final_norm;
  layer.mixer = read_attention(reader, defaults, model);
  layer.mixer.qkv_bias = layer.mixer.out_bias = reader.boolean_or("attention_bias", false);
  layer.mixer.qk_norm = true;
  if (reader.boolean_or("use_sliding_window", false) && !reader.has_null("sliding_window"))
    layer.mixer.window = reader.integer_or("sliding_window", 4096, kWindowRange);
  model.layers.assign(static_cast<size_t>(reader.integer("num_hidden_layers", kLayerRange)), layer);
  MlpSpec experts;
  experts.normalize_weights = reader.boolean_or("norm_topk_prob", false);
  read_qwen_experts(reader, model, experts);
}

void write_qwen3_moe(const ModelSpec& model, Json& config) {
  const MixerSpec& mixer = model.layers.front().mixer;
  write_base(model, config);
  write_attention(mixer, config);
  config["attention_bias"] = mixer.qkv_bias;
  config["use_sliding_window"] = mixer.window > 0;
  if (mixer.window > 0) config["sliding_window"] = mixer.window;
  write_qwen_experts(model, config);
}

void parse_gpt_oss(ModelReader& reader, ModelSpec& model) {
  const FamilyDefaults defaults{
      .kv_heads = 8, .head_dim = 64, .max_positions = 131072, .norm_eps = 1e-5, .rope_theta = 150000.0};
  read_base(reader, defaults, model);
  LayerSpec layer;
  layer.norm = model.final_norm;
  layer.mixer = read_attention(reader, defaults, model);
  layer.mixer.qkv_bias = layer.mixer.out_bias = reader.boolean_or("attention_bias", true);
  layer.mixer.sinks = true;
  const bool windows = !reader.has_null("sliding_window");
  const int64_t window = reader.integer_or("sliding_window", 128, kWindowRange);
  layer.mlp = {.kind = MlpKind::kMoe,
               .activation = Activation::kGptOssSwiglu,
               .expert_ffn = reader.integer("intermediate_size"),
               .expert_bias = true,
               .router = RouterKind::kTopKSoftmax,
               .router_bias = true};
  read_experts(reader, {"num_local_experts", "num_experts"}, layer.mlp);
  // The clamped SwiGLU of the published models: 7.0 and 1.702 are part of the activation.
  if (reader.number_or("swiglu_limit", 7.0, 0.0, 1e6) != 7.0) reader.fail("swiglu_limit", "only 7.0 is supported");
  if (reader.number_or("swiglu_alpha", 1.702, 0.0, 1e6) != 1.702)
    reader.fail("swiglu_alpha", "only 1.702 is supported");
  const int64_t num_layers = reader.integer("num_hidden_layers", kLayerRange);
  model.layers.assign(static_cast<size_t>(num_layers), layer);
  std::vector<std::string> types;
  for (int64_t i = 0; i < num_layers; ++i) types.emplace_back(i % 2 == 0 ? kSlidingAttention : kFullAttention);
  types = read_layer_types(reader, types, {kFullAttention, kSlidingAttention});
  for (size_t i = 0; i < types.size(); ++i)
    if (windows && types[i] == kSlidingAttention) model.layers[i].mixer.window = window;
}

void write_gpt_oss(const ModelSpec& model, Json& config) {
  const LayerSpec& layer = model.layers.front();
  write_base(model, config);
  write_attention(layer.mixer, config);
  config["attention_bias"] = layer.mixer.qkv_bias;
  config["hidden_act"] = activation_name(layer.mlp.activation);
  config["swiglu_limit"] = 7.0;
  config["intermediate_size"] = layer.mlp.expert_ffn;
  config["num_local_experts"] = layer.mlp.num_experts;
  config["num_experts_per_tok"] = layer.mlp.experts_per_token;
  int64_t window = 0;
  for (const LayerSpec& each : model.layers) window = std::max(window, each.mixer.window);
  config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  config["layer_types"] = window_layer_types(model);
}

}  // namespace

std::vector<ModelFamily> expert_families() {
  return {{"MixtralForCausalLM", "mixtral", parse_mixtral, write_mixtral},
          {"Qwen2MoeForCausalLM", "qwen2_moe", parse_qwen2_moe, write_qwen2_moe},
          {"Qwen3MoeForCausalLM", "qwen3_moe", parse_qwen3_moe, write_qwen3_moe},
          {"GptOssForCausalLM", "gpt_oss", parse_gpt_oss, write_gpt_oss}};
}

}  // namespace fivefold
