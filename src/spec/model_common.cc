// What the families of config.json share.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "spec/model_family.h"

namespace fivefold {
namespace {

constexpr double kMaxNormEps = 1.0;

struct NamedActivation {
  const char* name;
  Activation activation;
};
// The first name of an activation is the one that is written.
constexpr NamedActivation kActivations[] = {
    {"silu", Activation::kSilu},         {"swish", Activation::kSilu}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_new", Activation::kGeluTanh}, {"gelu", Activation::kGelu},  {"relu2", Activation::kReluSquared}};

}  // namespace

void read_base(ModelReader& reader, const FamilyDefaults& defaults, ModelSpec& model) {
  model.hidden = reader.integer("hidden_size");
  model.vocab = defaults.vocab > 0 ? reader.integer_or("vocab_size", defaults.vocab) : reader.integer("vocab_size");
  model.max_positions = reader.integer_or("max_position_embeddings", defaults.max_positions, {1, int64_t{1} << 40});
  model.tied_embeddings = reader.boolean_or("tie_word_embeddings", defaults.tied);
  model.init_std = reader.number_or("initializer_range", 0.02, 0.0, 100.0);
  model.final_norm.eps = reader.number_or(defaults.norm_eps_key, defaults.norm_eps, 0.0, kMaxNormEps);
}

void write_base(const ModelSpec& model, nlohmann::ordered_json& config) {
  config["hidden_size"] = model.hidden;
  config["num_hidden_layers"] = model.layers.size();
  config["vocab_size"] = model.vocab;
  config["max_position_embeddings"] = model.max_positions;
  config["tie_word_embeddings"] = model.tied_embeddings;
  config["initializer_range"] = model.init_std;
  config["rms_norm_eps"] = model.final_norm.eps;
}

MixerSpec read_attention(ModelReader& reader, const FamilyDefaults& defaults, const ModelSpec& model) {
  MixerSpec mixer;
  mixer.num_heads = defaults.heads > 0 ? reader.integer_or("num_attention_heads", defaults.heads, kHeadRange)
                                       : reader.integer("num_attention_heads", kHeadRange);
  // Absent has the family's default; an explicit null means as many as heads in every config class.
  const bool as_heads = defaults.kv_heads == 0 || reader.has_null("num_key_value_heads");
  const int64_t kv_default = as_heads ? mixer.num_heads : defaults.kv_heads;
  mixer.num_kv_heads = reader.integer_or("num_key_value_heads", kv_default, kHeadRange);
  if (mixer.num_heads % mixer.num_kv_heads != 0)
    reader.fail("num_key_value_heads",
                fmt::format("{} kv heads do not divide {} heads", mixer.num_kv_heads, mixer.num_heads),
                "each kv head serves a whole number of query heads");
  if (reader.has("head_dim")) {
    mixer.head_dim = reader.integer("head_dim", {1, 1 << 14});
  } else if (defaults.head_dim > 0) {
    mixer.head_dim = defaults.head_dim;
  } else {
    if (model.hidden % mixer.num_heads != 0)
      reader.fail(
          "num_attention_heads",
          fmt::format("{} heads do not divide hidden_size {} and there is no head_dim", mixer.num_heads, model.hidden),
          "give head_dim, or a number of heads that divides hidden_size");
    mixer.head_dim = model.hidden / mixer.num_heads;
  }
  mixer.rope = read_rope(reader, defaults, model.max_positions, mixer.head_dim);
  return mixer;
}

void write_attention(const MixerSpec& mixer, nlohmann::ordered_json& config) {
  config["num_attention_heads"] = mixer.num_heads;
  config["num_key_value_heads"] = mixer.num_kv_heads;
  config["head_dim"] = mixer.head_dim;
  if (!mixer.has_rope) return;
  write_rope(mixer.rope, config);
  if (mixer.rope.rotary_dim == mixer.head_dim) return;
  // Readers cut head_dim x factor to a whole number: the quotient must not round below it.
  const auto head_dim = static_cast<double>(mixer.head_dim), rotary_dim = static_cast<double>(mixer.rope.rotary_dim);
  const double factor = rotary_dim / head_dim;
  config["partial_rotary_factor"] = head_dim * factor < rotary_dim ? std::nextafter(factor, 1.0) : factor;
}

Activation read_activation(ModelReader& reader, const std::string& key, const std::string& fallback) {
  const std::string name = reader.text_or(key, fallback);
  std::vector<std::string> known;
  for (const NamedActivation& entry : kActivations) {
    if (name == entry.name) return entry.activation;
    known.emplace_back(entry.name);
  }
  reader.fail(key, fmt::format("unknown activation \"{}\"", name), name_hint(name, known));
  return Activation::kSilu;
}

std::string activation_name(Activation activation) {
  for (const NamedActivation& entry : kActivations)
    if (entry.activation == activation) return entry.name;
  return "silu";  // gpt-oss: the file says silu, its clamped SwiGLU follows from the architecture
}

std::vector<std::string> read_layer_types(ModelReader& reader, std::vector<std::string> fallback,
                                          const std::vector<std::string>& known) {
  if (!reader.has("layer_types")) return fallback;
  std::vector<std::string> types = reader.texts_or_empty("layer_types");
  if (types.size() != fallback.size()) {
    reader.fail("layer_types", fmt::format("{} entries for {} layers", types.size(), fallback.size()), "one per layer");
    return fallback;
  }
  for (const std::string& type : types)
    if (std::find(known.begin(), known.end(), type) == known.end())
      reader.fail("layer_types", fmt::format("unknown layer type \"{}\"", type), name_hint(type, known));
  return types;
}

std::vector<std::string> window_layer_types(const ModelSpec& model) {
  std::vector<std::string> types;
  for (const LayerSpec& layer : model.layers)
    types.emplace_back(layer.mixer.window > 0 ? kSlidingAttention : kFullAttention);
  return types;
}

void read_experts(ModelReader& reader, const std::vector<std::string>& keys, MlpSpec& mlp) {
  std::string found;
  for (const std::string& key : keys) {
    if (!reader.has(key)) continue;
    const int64_t count = reader.integer(key, kExpertRange);
    if (!found.empty() && count != mlp.num_experts)
      reader.fail(key, fmt::format("{} contradicts {} {}", count, found, mlp.num_experts), "keep one of them");
    mlp.num_experts = count;
    found = key;
  }
  if (found.empty()) mlp.num_experts = reader.integer(keys.front(), kExpertRange);
  mlp.experts_per_token = reader.integer("num_experts_per_tok", kExpertRange);
  if (mlp.experts_per_token > mlp.num_experts)
    reader.fail("num_experts_per_tok",
                fmt::format("{} experts per token of {} experts", mlp.experts_per_token, mlp.num_experts),
                fmt::format("at most {}", mlp.num_experts));
}

}  // namespace fivefold
