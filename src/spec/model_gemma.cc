// Gemma 3 in config.json: the text model, alone or as the text_config of the multimodal one.
#include <fmt/format.h>

#include <cmath>

#include "spec/model_family.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLocalTheta = 10000.0;
// The published multimodal configs leave out whatever equals these.
constexpr FamilyDefaults kDefaults{.vocab = 262208,
                                   .heads = 8,
                                   .kv_heads = 4,
                                   .head_dim = 256,
                                   .max_positions = 131072,
                                   .tied = true,
                                   .rope_theta = 1000000.0};

struct GemmaRopes {
  RopeSpec global, local;
};

void require_whole_heads(ModelReader& rope) {
  if (rope.number_or("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0)
    rope.fail("partial_rotary_factor", "Gemma 3 rotates whole heads", "1, or leave it out");
}

// Layers with a window have their own, unscaled RoPE.
GemmaRopes read_ropes(ModelReader& reader, const MixerSpec& mixer, const ModelSpec& model) {
  GemmaRopes ropes{mixer.rope, RopeSpec{}};
  ropes.local.rotary_dim = mixer.head_dim;
  ropes.local.theta = reader.number_or("rope_local_base_freq", kLocalTheta, 1.0 + 1e-9, 1e15);
  if (!reader.has("rope_parameters")) return ropes;
  ModelReader parameters = reader.object("rope_parameters");
  require_whole_heads(parameters);
  const auto read = [&](const char* type, RopeSpec& rope) {
    if (!parameters.has(type)) return;
    ModelReader entry = parameters.object(type);
    rope.theta = entry.number_or("rope_theta", rope.theta, 1.0 + 1e-9, 1e15);
    require_whole_heads(entry);
    read_rope_scaling(entry, model.max_positions, rope);
  };
  read(kFullAttention, ropes.global);
  read(kSlidingAttention, ropes.local);
  if (ropes.local.scaling != RopeScaling::kNone)
    reader.fail("rope_parameters.sliding_attention", "scaled RoPE in layers with a window is not supported");
  return ropes;
}

LayerSpec read_gemma_layer(ModelReader& reader, const ModelSpec& model) {
  LayerSpec layer;
  layer.norm = model.final_norm;
  layer.post_norm = true;
  require_whole_heads(reader);
  layer.mixer = read_attention(reader, kDefaults, model);
  layer.mixer.qkv_bias = layer.mixer.out_bias = reader.boolean_or("attention_bias", false);
  layer.mixer.qk_norm = true;
  layer.mixer.softmax_scale = 1.0 / std::sqrt(static_cast<double>(reader.integer_or("query_pre_attn_scalar", 256)));
  layer.mlp.activation = read_activation(reader, "hidden_activation", "gelu_pytorch_tanh");
  layer.mlp.ffn = reader.integer("intermediate_size");
  if (reader.has("attn_logit_softcapping"))
    reader.fail("attn_logit_softcapping", "capped attention scores (Gemma 2) are not supported");
  reader.require_false("use_bidirectional_attention", "only decoders");
  return layer;
}

void parse_gemma3(ModelReader& reader, ModelSpec& model) {
  read_base(reader, kDefaults, model);
  model.final_norm.weight_plus_one = true;
  model.embedding_scale = std::sqrt(static_cast<double>(model.hidden));
  model.logit_softcap = reader.number_or("final_logit_softcapping", 0.0, 0.0, 1e6);
  const LayerSpec layer = read_gemma_layer(reader, model);
  const GemmaRopes ropes = read_ropes(reader, layer.mixer, model);
  const int64_t num_layers = reader.integer("num_hidden_layers", kLayerRange);
  const int64_t window = reader.integer_or("sliding_window", 4096, kWindowRange);
  // One layer in `pattern` sees everything: the last of each group.
  const int64_t pattern = reader.integer_or("sliding_window_pattern", 6, kLayerRange);
  std::vector<std::string> types;
  for (int64_t i = 0; i < num_layers; ++i)
    types.emplace_back((i + 1) % pattern != 0 ? kSlidingAttention : kFullAttention);
  types = read_layer_types(reader, types, {kFullAttention, kSlidingAttention});
  model.layers.assign(types.size(), layer);
  for (size_t i = 0; i < types.size(); ++i) {
    const bool local = types[i] == kSlidingAttention;
    model.layers[i].mixer.window = local ? window : 0;
    model.layers[i].mixer.rope = local ? ropes.local : ropes.global;
  }
}

void parse_gemma3_multimodal(ModelReader& reader, ModelSpec& model) {
  if (!reader.has("text_config")) return reader.fail("text_config", "missing");
  ModelReader text = reader.object("text_config");
  parse_gemma3(text, model);
}

void write_gemma3(const ModelSpec& model, Json& config) {
  const LayerSpec& layer = model.layers.front();
  write_base(model, config);
  write_attention(layer.mixer, config);
  config.erase("rope_theta");
  config.erase("rope_scaling");
  for (const LayerSpec& each : model.layers) {
    if (each.mixer.window > 0) {
      config["sliding_window"] = each.mixer.window;
      config["rope_local_base_freq"] = each.mixer.rope.theta;
    } else {
      write_rope(each.mixer.rope, config);
    }
  }
  config["layer_types"] = window_layer_types(model);
  config["attention_bias"] = layer.mixer.qkv_bias;
  config["query_pre_attn_scalar"] = std::llround(1.0 / (layer.mixer.softmax_scale * layer.mixer.softmax_scale));
  config["hidden_activation"] = activation_name(layer.mlp.activation);
  config["intermediate_size"] = layer.mlp.ffn;
  if (model.logit_softcap > 0) config["final_logit_softcapping"] = model.logit_softcap;
}

}  // namespace

std::vector<ModelFamily> gemma_families() {
  // The multimodal entry comes second: a text model taken from it is written as a text model.
  return {{"Gemma3ForCausalLM", "gemma3_text", parse_gemma3, write_gemma3},
          {"Gemma3ForConditionalGeneration", "gemma3", parse_gemma3_multimodal, write_gemma3}};
}

}  // namespace fivefold
