#include "exporters/foreign_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/integer.h"
#include "base/text.h"
#include "spec/model_named.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

// "meta-llama/Llama-3.1-8B" of "meta-llama/Llama-3.1-8B: config.json on the Hugging Face Hub". Empty: none.
std::string repository_of_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  const nlohmann::json config = nlohmann::json::parse(file, nullptr, false);
  if (!config.is_object() || !config.contains("_source") || !config["_source"].is_string()) return "";
  const std::string source = config["_source"].get<std::string>();
  const std::string repository = source.substr(0, source.find_first_of(": "));
  return repository.find('/') == std::string::npos ? "" : repository;
}

// A repository's own name in the form of fivefold's names.
std::string plain_name(std::string name) {
  name = name.substr(name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name.starts_with("meta-")) name.erase(0, 5);
  for (bool cut = true; cut;) {
    cut = false;
    for (const std::string_view suffix : {"-instruct", "-chat", "-base", "-hf", "-it", "-pt", "-bnb-4bit", "-unsloth",
                                          "-v0.1", "-v0.3", "-fp16", "-bf16"})
      if (name.ends_with(suffix)) name.resize(name.size() - suffix.size()), cut = true;
  }
  // Llama's repositories write the version before or behind: Llama-3.1-8B, Llama3.1-8B.
  if (name.starts_with("llama") && name.size() > 5 && std::isdigit(static_cast<unsigned char>(name[5])))
    name.insert(5, "-");
  return name;
}

std::optional<FoundModel> read_found(const std::string& name, bool exact) {
  const Result<std::filesystem::path> path = find_named_model(name);
  if (!path.ok()) return {};
  Result<ModelSpec> spec = read_model_config(*path);
  if (!spec.ok()) return {};
  return FoundModel{{.name = name}, *std::move(spec), exact};
}

// What distinguishes sizes; the rest (positions, theta, eps) only chooses between models of the same sizes.
ModelShape sizes_of(ModelShape shape) {
  shape.max_positions = 0, shape.rope_theta = 0, shape.norm_eps = 0, shape.rope_scaled = false, shape.window = 0;
  if (shape.experts == 0) shape.experts_per_token = 0;
  // A wide MLP that no layer has.
  if (shape.experts > 0 && shape.dense_first == 0) shape.ffn = 0;
  return shape;
}

int likeness(const ModelShape& a, const ModelShape& b) {
  return 4 * (a.max_positions == b.max_positions) + 2 * (a.rope_scaled == b.rope_scaled) +
         2 * (a.rope_theta == b.rope_theta) + (a.norm_eps == b.norm_eps) + (a.window == b.window);
}

Json common_config(const ModelShape& shape) {
  return {{"hidden_size", shape.hidden},        {"num_hidden_layers", shape.layers},
          {"num_attention_heads", shape.heads}, {"num_key_value_heads", shape.kv_heads},
          {"head_dim", shape.head_dim},         {"intermediate_size", shape.ffn},
          {"vocab_size", shape.vocab},          {"max_position_embeddings", shape.max_positions},
          {"rms_norm_eps", shape.norm_eps},     {"rope_theta", shape.rope_theta},
          {"tie_word_embeddings", shape.tied},  {"hidden_act", "silu"},
          {"torch_dtype", "bfloat16"}};
}

Json gpt2_config(const ModelShape& shape) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"n_embd", shape.hidden},
          {"n_layer", shape.layers},
          {"n_head", shape.heads},
          {"n_inner", shape.ffn},
          {"n_positions", shape.max_positions},
          {"vocab_size", shape.vocab},
          {"tie_word_embeddings", shape.tied},
          {"layer_norm_epsilon", shape.norm_eps}};
}

void add_experts(const ModelShape& shape, Json& config) {
  config["num_experts_per_tok"] = shape.experts_per_token;
  if (shape.kv_lora_rank > 0 || (shape.shared_ffn > 0 && !shape.shared_gate && !shape.qk_norm)) return;
  config["norm_topk_prob"] = true;
  config["mlp_only_layers"] = Json::array();
  for (int64_t i = 0; i < std::min(shape.dense_first, shape.layers); ++i) config["mlp_only_layers"].push_back(i);
  if (shape.shared_ffn > 0) config["shared_expert_intermediate_size"] = shape.shared_ffn;
}

// The family whose layers have these parts.
std::string family_of(const ModelShape& shape) {
  if (shape.kv_lora_rank > 0) return "DeepseekV3ForCausalLM";
  if (shape.experts > 0)
    return shape.shared_ffn > 0                     ? "Qwen2MoeForCausalLM"
           : shape.qk_norm || shape.dense_first > 0 ? "Qwen3MoeForCausalLM"
                                                    : "MixtralForCausalLM";
  if (shape.qk_norm) return "Qwen3ForCausalLM";
  if (shape.qkv_bias && !shape.linear_bias) return "Qwen2ForCausalLM";
  return "LlamaForCausalLM";
}

Json decoder_config(const ModelShape& shape, std::vector<std::string>& approximations) {
  ModelShape fitted = shape;
  if (!shape.gated) {
    fitted.ffn = std::max<int64_t>(1, div_floor(2 * shape.ffn, 3));
    approximations.push_back(fmt::format(
        "an MLP of two matrices of width {} counts as a gated one of {}: the same weights", shape.ffn, fitted.ffn));
  }
  if (!shape.rope) approximations.push_back("positions count as rotary");
  if (!shape.rms_norm) approximations.push_back("LayerNorm counts as RMSNorm");
  Json config = common_config(fitted);
  const std::string family = family_of(shape);
  config["architectures"] = {family};
  config["attention_bias"] = shape.linear_bias;
  if (family == "LlamaForCausalLM") config["mlp_bias"] = shape.linear_bias;
  if (family == "DeepseekV3ForCausalLM") {
    if (shape.q_lora_rank > 0)
      config["q_lora_rank"] = shape.q_lora_rank;
    else
      config["q_lora_rank"] = nullptr;
    config["kv_lora_rank"] = shape.kv_lora_rank;
    config["qk_nope_head_dim"] = shape.qk_nope_head_dim;
    config["qk_rope_head_dim"] = shape.qk_rope_head_dim;
    config["v_head_dim"] = shape.v_head_dim;
    config.erase("head_dim");
    config["n_routed_experts"] = std::max<int64_t>(1, shape.experts);
    config["moe_intermediate_size"] = std::max<int64_t>(1, shape.expert_ffn);
    config["n_shared_experts"] = shape.expert_ffn > 0 && shape.shared_ffn > 0
                                     ? std::max<int64_t>(1, div_floor(shape.shared_ffn, shape.expert_ffn))
                                     : 0;
    config["first_k_dense_replace"] = shape.experts > 0 ? shape.dense_first : shape.layers;
    config["n_group"] = config["topk_group"] = 1;
  } else if (shape.experts > 0) {
    config[family == "MixtralForCausalLM" ? "num_local_experts" : "num_experts"] = shape.experts;
    if (family == "MixtralForCausalLM")
      config["intermediate_size"] = shape.expert_ffn;
    else
      config["moe_intermediate_size"] = shape.expert_ffn;
  }
  if (shape.experts > 0) add_experts(shape, config);
  return config;
}

std::string known_model_of(const ModelShape& shape) {
  const ModelShape wanted = sizes_of(shape);
  std::string best;
  int best_likeness = -1;
  for (const std::string& name : list_named_models()) {
    const std::optional<FoundModel> found = read_found(name, true);
    const std::optional<ModelShape> known = found ? shape_of(found->spec) : std::nullopt;
    if (!known || sizes_of(*known) != wanted || likeness(*known, shape) <= best_likeness) continue;
    best = name;
    best_likeness = likeness(*known, shape);
  }
  return best;
}

bool alike(const LayerSpec& a, const LayerSpec& b, const LayerSpec& expected) {
  return a.norm == b.norm && a.mixer == b.mixer && a.pre_norm == expected.pre_norm && !a.post_norm && !a.single_norm;
}

void add_experts_of(const MlpSpec& mlp, ModelShape& shape) {
  shape.experts = mlp.num_experts;
  shape.experts_per_token = mlp.experts_per_token;
  shape.expert_ffn = mlp.expert_ffn;
  shape.shared_ffn = mlp.shared_ffn;
  shape.shared_gate = mlp.shared_gate;
}

}  // namespace

std::optional<ModelShape> shape_of(const ModelSpec& model) {
  if (model.layers.empty() || model.embedding_scale != 1.0 || model.logit_softcap != 0.0) return {};
  const LayerSpec& last = model.layers.back();
  const MixerSpec& mixer = last.mixer;
  if ((mixer.kind != MixerKind::kAttention && mixer.kind != MixerKind::kLatentAttention) || mixer.output_gate ||
      mixer.sinks)
    return {};
  ModelShape shape{.layers = static_cast<int64_t>(model.layers.size()),
                   .hidden = model.hidden,
                   .heads = mixer.num_heads,
                   .kv_heads = mixer.num_kv_heads,
                   .head_dim = mixer.head_dim,
                   .vocab = model.vocab,
                   .max_positions = model.max_positions};
  int64_t dense = 0;
  // Layers with experts follow those without.
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const LayerSpec& layer = model.layers[i];
    if (!alike(layer, last, LayerSpec{}) || layer.mlp.kind == MlpKind::kNone) return {};
    if (layer.mlp.kind == MlpKind::kMoe) continue;
    if (static_cast<size_t>(dense) != i) return {};
    ++dense;
    shape.ffn = layer.mlp.ffn;
  }
  const MlpSpec& mlp = last.mlp;
  shape.rope = mixer.has_rope, shape.rms_norm = last.norm.kind == NormKind::kRms;
  shape.gated = mlp.kind == MlpKind::kMoe ? mlp.expert_gated : mlp.kind == MlpKind::kGated;
  shape.squared_relu = mlp.activation == Activation::kReluSquared;
  shape.tied = model.tied_embeddings;
  shape.linear_bias = mixer.out_bias, shape.qkv_bias = mixer.qkv_bias, shape.qk_norm = mixer.qk_norm;
  shape.rope_theta = mixer.rope.theta, shape.norm_eps = last.norm.eps, shape.window = mixer.window;
  shape.rope_scaled = mixer.rope.scaling == RopeScaling::kLlama3;
  if (mlp.kind == MlpKind::kMoe) {
    add_experts_of(mlp, shape);
    shape.dense_first = dense;
  }
  if (mixer.kind == MixerKind::kLatentAttention) {
    shape.q_lora_rank = mixer.q_lora_rank, shape.kv_lora_rank = mixer.kv_lora_rank;
    shape.qk_nope_head_dim = mixer.qk_nope_head_dim, shape.qk_rope_head_dim = mixer.qk_rope_head_dim;
    shape.v_head_dim = mixer.v_head_dim;
    shape.kv_heads = shape.heads, shape.head_dim = 0;
  }
  return shape;
}

std::string hub_repository(const ModelConfig& model) {
  if (!model.config.empty()) return std::filesystem::path(model.config).parent_path().string();
  if (model.name.empty()) return "";
  const Result<std::filesystem::path> path = find_named_model(model.name);
  return path.ok() ? repository_of_file(*path) : "";
}

std::optional<FoundModel> find_model(const std::string& repository) {
  std::error_code error;
  for (const std::filesystem::path& file :
       {std::filesystem::path(repository) / "config.json", std::filesystem::path(repository)})
    if (!repository.empty() && file.extension() == ".json" && std::filesystem::is_regular_file(file, error)) {
      Result<ModelSpec> spec = read_model_config(file);
      if (spec.ok()) return FoundModel{{.config = file.string()}, *std::move(spec), true};
    }
  const std::vector<std::string> names = list_named_models();
  if (std::find(names.begin(), names.end(), repository) != names.end()) return read_found(repository, true);
  // The names that are spelled like the repository, then whatever file names it.
  const std::string wanted = plain_name(repository);
  const auto is_source = [&](const std::string& name) {
    const Result<std::filesystem::path> path = find_named_model(name);
    return path.ok() && repository_of_file(*path) == repository;
  };
  std::vector<std::string> alike;
  for (const std::string& name : names)
    if (!wanted.empty() && plain_name(name) == wanted) alike.push_back(name);
  for (const std::vector<std::string>* some : {static_cast<const std::vector<std::string>*>(&alike), &names})
    if (const auto found = std::ranges::find_if(*some, is_source); found != some->end() && !repository.empty())
      return read_found(*found, true);
  if (!alike.empty()) return read_found(alike.front(), false);
  return {};
}

Result<ShapedModel> model_of_shape(const ModelShape& shape, const std::string& where) {
  if (const std::string name = known_model_of(shape); !name.empty())
    return ShapedModel{read_found(name, true)->spec, name, "", {}};
  ShapedModel result;
  const bool gpt2 = !shape.rope && !shape.rms_norm && !shape.gated && shape.experts == 0 && shape.linear_bias &&
                    shape.heads == shape.kv_heads && shape.kv_lora_rank == 0;
  Json config = gpt2 ? gpt2_config(shape) : decoder_config(shape, result.approximations);
  result.config_json = config.dump(2) + "\n";
  FIVEFOLD_ASSIGN(result.spec, parse_model_config(result.config_json, where));
  return result;
}

}  // namespace fivefold
