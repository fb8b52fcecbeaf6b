// Dense families of config.json: Llama, Mistral, Qwen2, Qwen3, GPT-2.
#include <fmt/format.h>

#include "spec/model_family.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

// One attention and one gated MLP per layer, RMSNorm before each: what Llama, Mistral and Qwen share.
LayerSpec read_decoder_layer(ModelReader& reader, const FamilyDefaults& defaults, ModelSpec& model) {
  read_base(reader, defaults, model);
  LayerSpec layer;
  layer.norm = model.final_norm;
  layer.mixer = read_attention(reader, defaults, model);
  layer.mlp.activation = read_activation(reader, "hidden_act", "silu");
  layer.mlp.ffn = reader.integer("intermediate_size");
  return layer;
}

void repeat_layer(ModelReader& reader, const LayerSpec& layer, ModelSpec& model) {
  model.layers.assign(static_cast<size_t>(reader.integer("num_hidden_layers", kLayerRange)), layer);
}

void write_decoder(const ModelSpec& model, Json& config) {
  const LayerSpec& layer = model.layers.front();
  write_base(model, config);
  write_attention(layer.mixer, config);
  config["hidden_act"] = activation_name(layer.mlp.activation);
  config["intermediate_size"] = layer.mlp.ffn;
}

void parse_llama(ModelReader& reader, ModelSpec& model) {
  LayerSpec layer = read_decoder_layer(reader, {.max_positions = 2048}, model);
  layer.mixer.qkv_bias = layer.mixer.out_bias = reader.boolean_or("attention_bias", false);
  layer.mlp.bias = reader.boolean_or("mlp_bias", false);
  repeat_layer(reader, layer, model);
}

void write_llama(const ModelSpec& model, Json& config) {
  write_decoder(model, config);
  config["attention_bias"] = model.layers.front().mixer.qkv_bias;
  config["mlp_bias"] = model.layers.front().mlp.bias;
}

void parse_mistral(ModelReader& reader, ModelSpec& model) {
  LayerSpec layer = read_decoder_layer(reader, {.kv_heads = 8, .max_positions = 4096 * 32}, model);
  // Absent means 4,096; only an explicit null switches the window off.
  layer.mixer.window = reader.has_null("sliding_window") ? 0 : reader.integer_or("sliding_window", 4096, kWindowRange);
  repeat_layer(reader, layer, model);
}

void write_mistral(const ModelSpec& model, Json& config) {
  write_decoder(model, config);
  const int64_t window = model.layers.front().mixer.window;
  config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
}

// Qwen: layers from max_window_layers on have a window when use_sliding_window says so; layer_types overrides.
void read_qwen_windows(ModelReader& reader, ModelSpec& model) {
  int64_t window = 0;
  if (reader.boolean_or("use_sliding_window", false) && !reader.has_null("sliding_window"))
    window = reader.integer_or("sliding_window", 4096, kWindowRange);
  const auto first = static_cast<size_t>(reader.integer_or("max_window_layers", 28, {0, kLayerRange.max}));
  std::vector<std::string> types(model.layers.size(), kFullAttention);
  for (size_t i = first; i < types.size() && window > 0; ++i) types[i] = kSlidingAttention;
  types = read_layer_types(reader, types, {kFullAttention, kSlidingAttention});
  for (size_t i = 0; i < types.size(); ++i)
    if (types[i] == kSlidingAttention) model.layers[i].mixer.window = window;
}

void write_qwen_windows(const ModelSpec& model, Json& config) {
  int64_t window = 0;
  for (const LayerSpec& layer : model.layers) window = std::max(window, layer.mixer.window);
  config["use_sliding_window"] = window > 0;
  if (window == 0) return;
  config["sliding_window"] = window;
  config["layer_types"] = window_layer_types(model);
}

void parse_qwen2(ModelReader& reader, ModelSpec& model) {
  LayerSpec layer = read_decoder_layer(reader, {.kv_heads = 32, .max_positions = 32768}, model);
  layer.mixer.qkv_bias = true;
  repeat_layer(reader, layer, model);
  read_qwen_windows(reader, model);
}

void write_qwen2(const ModelSpec& model, Json& config) {
  write_decoder(model, config);
  write_qwen_windows(model, config);
}

void parse_qwen3(ModelReader& reader, ModelSpec& model) {
  LayerSpec layer = read_decoder_layer(reader, {.kv_heads = 32, .head_dim = 128, .max_positions = 32768}, model);
  layer.mixer.qkv_bias = layer.mixer.out_bias = reader.boolean_or("attention_bias", false);
  layer.mixer.qk_norm = true;
  repeat_layer(reader, layer, model);
  read_qwen_windows(reader, model);
}

void write_qwen3(const ModelSpec& model, Json& config) {
  write_decoder(model, config);
  config["attention_bias"] = model.layers.front().mixer.qkv_bias;
  write_qwen_windows(model, config);
}

void parse_gpt2(ModelReader& reader, ModelSpec& model) {
  model.hidden = reader.integer("n_embd");
  model.vocab = reader.integer("vocab_size");
  model.max_positions = reader.integer_or("n_positions", 1024);
  model.learned_positions = true;
  model.tied_embeddings = reader.boolean_or("tie_word_embeddings", true);
  model.init_std = reader.number_or("initializer_range", 0.02, 0.0, 100.0);
  model.final_norm = {
      .kind = NormKind::kLayer, .eps = reader.number_or("layer_norm_epsilon", 1e-5, 0.0, 1.0), .bias = true};
  model.naming = "gpt2";
  LayerSpec layer;
  layer.norm = model.final_norm;
  layer.mixer.num_heads = layer.mixer.num_kv_heads = reader.integer("n_head", kHeadRange);
  if (model.hidden % layer.mixer.num_heads != 0)
    reader.fail("n_head", fmt::format("{} heads do not divide n_embd {}", layer.mixer.num_heads, model.hidden),
                "a number of heads that divides n_embd");
  layer.mixer.head_dim = model.hidden / layer.mixer.num_heads;
  layer.mixer.qkv_bias = layer.mixer.out_bias = true;
  layer.mixer.has_rope = false;
  layer.mlp = {.kind = MlpKind::kPlain,
               .activation = read_activation(reader, "activation_function", "gelu_new"),
               .ffn = reader.integer_or("n_inner", 4 * model.hidden),
               .bias = true};
  reader.require_false("scale_attn_by_inverse_layer_idx", "scores are scaled by 1 / sqrt(head size) in every layer");
  reader.require_false("reorder_and_upcast_attn", "scores are computed in the usual order");
  reader.require_false("add_cross_attention", "only decoders");
  if (!reader.boolean_or("scale_attn_weights", true))
    reader.fail("scale_attn_weights", "false is not supported: scores are scaled by 1 / sqrt(head size)");
  model.layers.assign(static_cast<size_t>(reader.integer("n_layer", kLayerRange)), layer);
}

void write_gpt2(const ModelSpec& model, Json& config) {
  const LayerSpec& layer = model.layers.front();
  config["n_embd"] = model.hidden;
  config["n_layer"] = model.layers.size();
  config["n_head"] = layer.mixer.num_heads;
  config["n_positions"] = model.max_positions;
  config["n_inner"] = layer.mlp.ffn;
  config["vocab_size"] = model.vocab;
  config["tie_word_embeddings"] = model.tied_embeddings;
  config["initializer_range"] = model.init_std;
  config["layer_norm_epsilon"] = model.final_norm.eps;
  config["activation_function"] =
      layer.mlp.activation == Activation::kGeluTanh ? "gelu_new" : activation_name(layer.mlp.activation);
}

}  // namespace

std::vector<ModelFamily> dense_families() {
  return {{"LlamaForCausalLM", "llama", parse_llama, write_llama},
          {"MistralForCausalLM", "mistral", parse_mistral, write_mistral},
          {"Qwen2ForCausalLM", "qwen2", parse_qwen2, write_qwen2},
          {"Qwen3ForCausalLM", "qwen3", parse_qwen3, write_qwen3},
          {"GPT2LMHeadModel", "gpt2", parse_gpt2, write_gpt2}};
}

}  // namespace fivefold
