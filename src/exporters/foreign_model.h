// Between models as other frameworks name or describe them and fivefold's: Hub repositories, and shapes given by
// arguments (hidden size, heads, ...). Reads configs/models; otherwise thread-safe without state.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "spec/model.h"
#include "spec/run_config.h"

namespace fivefold {

// The repository of [model]: of the named model, or the folder that holds its config.json. Empty: not known.
std::string hub_repository(const ModelConfig& model);

// [model] for a repository, a folder with a config.json, or a name of fivefold's own; copies, fine-tuned and quantised
// forms of a known model count as the model ("-Instruct", "-hf", "unsloth/..."). `exact` says whether the name was
// literally known. Nothing: no such model.
struct FoundModel {
  ModelConfig config;
  ModelSpec spec;
  bool exact = true;
};
std::optional<FoundModel> find_model(const std::string& repository);

// What a model is made of, as arguments give it.
struct ModelShape {
  int64_t layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0, max_positions = 0;
  bool rope = true, rms_norm = true, gated = true, tied = true, linear_bias = false, qkv_bias = false, qk_norm = false;
  bool squared_relu = false;
  double rope_theta = 10000.0, norm_eps = 1e-5;
  bool rope_scaled = false;  // as in Llama 3.1
  int64_t window = 0;
  // Experts; 0 experts: dense.
  int64_t experts = 0, experts_per_token = 2, expert_ffn = 0, shared_ffn = 0, dense_first = 0;
  bool shared_gate = false;
  // Latent attention; kv_lora_rank 0: not used.
  int64_t q_lora_rank = 0, kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;

  bool operator==(const ModelShape&) const = default;
};

// Nothing: layers that differ in more than which come first without experts, or of kinds that no shape has.
std::optional<ModelShape> shape_of(const ModelSpec& model);

// The known model of this shape, or a config.json of the nearest family. `approximations`: what the family has
// otherwise. Errors: sizes that make no model.
struct ShapedModel {
  ModelSpec spec;
  std::string name;  // of configs/models; empty: `config_json` holds the model
  std::string config_json;
  std::vector<std::string> approximations;
};
Result<ShapedModel> model_of_shape(const ModelShape& shape, const std::string& where);

}  // namespace fivefold
