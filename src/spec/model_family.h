// The families of config.json: one entry per architecture with its parser and its writer, and the pieces they share.
// Internal to spec/model*.cc; nothing after parsing asks for a family.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model.h"
#include "spec/model_reader.h"

namespace fivefold {

struct ModelFamily {
  std::string_view architecture;  // of `architectures`
  std::string_view model_type;
  // Fills everything but name, architecture and stored_dtype; problems are left in the reader.
  void (*parse)(ModelReader& reader, ModelSpec& model);
  // Adds everything but `architectures`, `model_type`, name and dtype. REQUIRES: a spec that `parse` made.
  void (*write)(const ModelSpec& model, nlohmann::ordered_json& config);
};

const std::vector<ModelFamily>& model_families();

// What a config class of transformers assumes for absent keys. 0 for a size: the key is required (num_key_value_heads:
// as many as heads; head_dim: hidden / heads).
struct FamilyDefaults {
  int64_t vocab = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 2048;
  bool tied = false;
  double norm_eps = 1e-6;
  const char* norm_eps_key = "rms_norm_eps";
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1.0;
};

inline constexpr IntegerRange kLayerRange{1, 4096};
inline constexpr IntegerRange kHeadRange{1, 1 << 14};
inline constexpr IntegerRange kWindowRange{1, int64_t{1} << 40};
inline constexpr IntegerRange kExpertRange{1, 1 << 16};

// hidden, vocab, max_positions, tied_embeddings, init_std, final_norm (RMSNorm).
void read_base(ModelReader& reader, const FamilyDefaults& defaults, ModelSpec& model);
void write_base(const ModelSpec& model, nlohmann::ordered_json& config);

// An attention mixer: heads, kv heads, head size and RoPE; no biases, no window.
// Errors: kv heads that do not divide heads, hidden that heads do not divide while head_dim is absent, RoPE errors.
MixerSpec read_attention(ModelReader& reader, const FamilyDefaults& defaults, const ModelSpec& model);
void write_attention(const MixerSpec& mixer, nlohmann::ordered_json& config);

// RoPE from either spelling. `head_dim` times partial_rotary_factor dims rotate.
// Errors: unknown type, missing or contradictory parameters, odd number of rotating dims.
RopeSpec read_rope(ModelReader& reader, const FamilyDefaults& defaults, int64_t max_positions, int64_t head_dim);
// rope_theta and rope_scaling, which every reader of config.json understands.
void write_rope(const RopeSpec& rope, nlohmann::ordered_json& config);
// The value of a rope_scaling object; null without scaling.
nlohmann::ordered_json rope_scaling_json(const RopeSpec& rope);
// Only the scaling part, from an object with rope_type or type.
void read_rope_scaling(ModelReader& scaling, int64_t max_positions, RopeSpec& rope);

// Errors: unknown activation, with the nearest known one.
Activation read_activation(ModelReader& reader, const std::string& key, const std::string& fallback);
std::string activation_name(Activation activation);

// `layer_types` (one of `known` per layer), or `fallback`, which has one entry per layer, without the key.
// Errors: another length, an unknown type.
std::vector<std::string> read_layer_types(ModelReader& reader, std::vector<std::string> fallback,
                                          const std::vector<std::string>& known);
inline constexpr const char* kFullAttention = "full_attention";
inline constexpr const char* kSlidingAttention = "sliding_attention";
// layer_types of a model whose layers differ by their window.
std::vector<std::string> window_layer_types(const ModelSpec& model);

// Experts: `num_experts` under any of the spellings of `keys` (which must agree), experts per token.
// Errors: more experts per token than experts.
void read_experts(ModelReader& reader, const std::vector<std::string>& keys, MlpSpec& mlp);

// The experts of Qwen's configs (Qwen2-MoE, Qwen3-MoE, Qwen3-Next): which layers have them, and their sizes on top of
// what `experts` says already. REQUIRES: model.layers has its final length.
void read_qwen_experts(ModelReader& reader, ModelSpec& model, MlpSpec experts);
void write_qwen_experts(const ModelSpec& model, nlohmann::ordered_json& config);

// The families, by file.
std::vector<ModelFamily> dense_families();   // model_dense.cc: Llama, Mistral, Qwen2, Qwen3, GPT-2
std::vector<ModelFamily> expert_families();  // model_experts.cc: Mixtral, Qwen2-MoE, Qwen3-MoE, gpt-oss
std::vector<ModelFamily> latent_families();  // model_latent.cc: DeepSeek-V2, DeepSeek-V3
std::vector<ModelFamily> gemma_families();   // model_gemma.cc: Gemma 3, text
std::vector<ModelFamily> hybrid_families();  // model_hybrid.cc: Qwen3-Next, Nemotron-H

// First layer of the spec with a property, for writers. REQUIRES: there is one.
template <typename Predicate>
const LayerSpec& first_layer(const ModelSpec& model, Predicate has) {
  for (const LayerSpec& layer : model.layers)
    if (has(layer)) return layer;
  FIVEFOLD_CHECK(false, "no layer of this kind in " + model.name);
}

}  // namespace fivefold
