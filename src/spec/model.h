// ModelSpec: a decoder language model as a list of layers. Families (Llama, GPT-2, ...) only exist in the parsers of
// their `config.json`; nothing after parsing asks for a family's name. Plain data, no behaviour.
// Symbols as in docs/symbols.md: h hidden, a query heads, k KV heads, d head size, f FFN width, V vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "spec/adapter.h"
#include "spec/enums.h"

namespace fivefold {

enum class NormKind : uint8_t { kRms, kLayer };

struct NormSpec {
  NormKind kind = NormKind::kRms;
  double eps = 1e-6;
  bool bias = false;             // LayerNorm bias
  bool weight_plus_one = false;  // Gemma: y = x_hat * (1 + weight)

  bool operator==(const NormSpec&) const = default;
};

enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kLlama3, kYarn };

// Rotary position embedding. Tables are made by spec/rope.h.
struct RopeSpec {
  double theta = 10000.0;
  int64_t rotary_dim = 0;    // dims of a head that rotate (<= head_dim), pairs are (i, i + rotary_dim / 2)
  bool interleaved = false;  // pairs are neighbours on disk (DeepSeek)
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_max_positions = 0;  // trained length; for kDynamic the config's max_position_embeddings
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // kLlama3
  double beta_fast = 32.0, beta_slow = 1.0;              // kYarn
  double attention_factor = 0.0;                         // kYarn: 0 means derived from factor
  double mscale = 0.0, mscale_all_dim = 0.0;             // kYarn, DeepSeek
  bool truncate = true;                                  // kYarn: round the ramp's ends

  bool operator==(const RopeSpec&) const = default;
};

enum class MixerKind : uint8_t {
  kNone,             // the layer has no mixer (some hybrids)
  kAttention,        // multi-head, grouped or multi-query attention
  kLatentAttention,  // MLA
  kLinearAttention,  // gated delta rule (Qwen3-Next): planner only
  kMamba2,           // state space model: planner only
};

struct MixerSpec {
  MixerKind kind = MixerKind::kAttention;
  int64_t num_heads = 0;     // a
  int64_t num_kv_heads = 0;  // k
  int64_t head_dim = 0;      // d
  bool qkv_bias = false, out_bias = false;
  bool qk_norm = false;        // RMSNorm of each head of q and k, weight [head_dim], before RoPE
  bool output_gate = false;    // attention output times sigmoid gate from a doubled q projection (Qwen3-Next)
  bool sinks = false;          // one learned logit per head (gpt-oss)
  int64_t window = 0;          // sliding window in tokens; 0: full causal
  double softmax_scale = 0.0;  // factor of the scores; 0: 1 / sqrt(head size)
  bool has_rope = true;
  RopeSpec rope;
  // MLA
  int64_t q_lora_rank = 0, kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  // kLinearAttention
  int64_t linear_key_heads = 0, linear_value_heads = 0, linear_key_dim = 0, linear_value_dim = 0, conv_kernel = 0;
  // kMamba2
  int64_t ssm_heads = 0, ssm_head_dim = 0, ssm_state = 0, ssm_groups = 0;
  bool ssm_conv_bias = false, ssm_proj_bias = false;

  bool operator==(const MixerSpec&) const = default;
};

enum class MlpKind : uint8_t { kNone, kGated, kPlain, kMoe };
enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu, kReluSquared, kGptOssSwiglu };
enum class RouterKind : uint8_t { kSoftmaxTopK, kTopKSoftmax, kSigmoid };

struct MlpSpec {
  MlpKind kind = MlpKind::kGated;
  Activation activation = Activation::kSilu;
  int64_t ffn = 0;  // f of a dense MLP
  bool bias = false;
  // kMoe
  int64_t num_experts = 0, experts_per_token = 0, expert_ffn = 0;
  bool expert_gated = true, expert_bias = false;
  int64_t shared_ffn = 0;    // total width of the shared experts
  bool shared_gate = false;  // shared expert scaled by a sigmoid gate, weight [1, h]
  RouterKind router = RouterKind::kSoftmaxTopK;
  bool normalize_weights = true, router_bias = false, router_correction_bias = false;
  double routed_scaling = 1.0;
  int64_t expert_groups = 1, groups_per_token = 1;

  bool operator==(const MlpSpec&) const = default;
};

struct LayerSpec {
  NormSpec norm;  // kind of every norm of the layer
  MixerSpec mixer;
  MlpSpec mlp;
  bool pre_norm = true;      // norms before mixer and MLP
  bool post_norm = false;    // norms after mixer and MLP, before the residual add (Gemma 2/3)
  bool single_norm = false;  // one norm and one sublayer (hybrids where mixer and MLP are separate layers)

  bool operator==(const LayerSpec&) const = default;
};

struct ModelSpec {
  std::string name;          // as the user calls it
  std::string architecture;  // `architectures[0]` of config.json, for writing it back; never decided on
  int64_t hidden = 0;        // h
  int64_t vocab = 0;         // V as on disk
  int64_t max_positions = 0;
  bool learned_positions = false;  // GPT-2: an embedding row per position
  bool tied_embeddings = false;
  bool embedding_bias_head = false;  // head has a bias
  double embedding_scale = 1.0;      // Gemma: sqrt(h)
  double logit_softcap = 0.0;
  NormSpec final_norm;
  std::vector<LayerSpec> layers;
  // Multi-token-prediction modules that the checkpoint carries behind the layers (DeepSeek-V3: 1). Noted only: they are
  // neither trained nor counted, as in the published 671 B.
  int64_t num_mtp_layers = 0;
  DType stored_dtype = DType::kFloat32;  // of the published weights
  // How tensors are called on disk: "llama", "gpt2", ... one of the naming tables of spec/names.h.
  std::string naming = "llama";
  double init_std = 0.02;
  // What is trained: nothing here: every parameter; else only the adapters of the linears (with_method()). Not part of
  // a config.json.
  std::optional<AdapterSpec> adapter{};

  bool operator==(const ModelSpec&) const = default;
};

// Reads a Hub `config.json` (or the folder that holds one). Both spellings of RoPE and dtype keys are understood
// (rope_theta / rope_scaling and rope_parameters; torch_dtype and dtype); absent keys have the defaults of the config
// classes of transformers. `name` is the last part of `_name_or_path`, else the folder's or file's name.
// Errors ("PATH: key"): unreadable or not JSON, missing key, wrong type, size out of range, contradictory values (heads
// that kv heads do not divide, layer_types of another length, two spellings that differ, ...), unknown architecture,
// activation or RoPE type with the nearest known one, features that no layer kind has, quantised weights.
Result<ModelSpec> read_model_config(const std::filesystem::path& config_json);
// The same from text; `where` stands for the file in errors and names the model when the text does not.
Result<ModelSpec> parse_model_config(const std::string& json_text, const std::string& where);
// Writes a config.json that read_model_config reads to an equal spec, with the keys that the family's config class has.
// REQUIRES: `model` came from a config.json (its layers are of the shape that its architecture can express).
std::string write_model_config(const ModelSpec& model);
// `architectures` entries that parse_model_config accepts.
std::vector<std::string> known_architectures();

}  // namespace fivefold
