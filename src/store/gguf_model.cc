#include "store/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "spec/rope.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

struct Architecture {
  const char* name;
  const char* hub_class;
  const char* model_type;
};
constexpr Architecture kArchitectures[] = {{"llama", "LlamaForCausalLM", "llama"},
                                           {"qwen2", "Qwen2ForCausalLM", "qwen2"},
                                           {"qwen3", "Qwen3ForCausalLM", "qwen3"},
                                           {"gpt2", "GPT2LMHeadModel", "gpt2"}};

// Integers of the metadata under the architecture's prefix, as keys of config.json. The first problem is kept.
class Metadata {
 public:
  Metadata(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  bool has(const char* key) const { return file_.has(prefix_ + key); }
  int64_t integer(const char* key) { return keep(file_.integer(prefix_ + key), int64_t{1}); }
  int64_t integer_or(const char* key, int64_t fallback) {
    return keep(file_.integer_or(prefix_ + key, fallback), fallback);
  }
  double number(const char* key) { return keep(file_.number(prefix_ + key), 1.0); }
  double number_or(const char* key, double fallback) {
    return keep(file_.number_or(prefix_ + key, fallback), fallback);
  }
  std::string text_or(const char* key, const char* fallback) {
    return keep(file_.text_or(prefix_ + key, fallback), std::string(fallback));
  }
  void fail(const char* key, std::string problem, std::string hint = "") {
    if (status_.ok()) status_ = Error{file_.place(prefix_ + key), std::move(problem), std::move(hint)};
  }
  const Status& status() const { return status_; }

 private:
  template <typename T>
  T keep(Result<T> result, T fallback) {
    if (result.ok()) return std::move(result).value();
    if (status_.ok()) status_ = result.error();
    return fallback;
  }

  const GgufFile& file_;
  std::string prefix_;
  Status status_ = Ok{};
};

Json linear_scaling(Metadata& metadata) {
  return {{"rope_type", "linear"}, {"factor", metadata.number("rope.scaling.factor")}};
}

Json yarn_scaling(Metadata& metadata) {
  return {{"rope_type", "yarn"},
          {"factor", metadata.number("rope.scaling.factor")},
          {"original_max_position_embeddings", metadata.integer("rope.scaling.original_context_length")}};
}

// Llama 3.1 and later: the file holds, for each pair, by how much its frequency is divided, not the rule. The rule is
// known (low 1, high 4, trained on 8,192 positions) up to its factor, which is the largest divisor.
Result<Json> llama3_scaling(const GgufFile& file, const GgufTensor& tensor, double theta, int64_t head_dim) {
  const Error unknown{file.place(tensor.name), "scales frequencies by no rule that is known",
                      "known: that of Llama 3.1 to 3.3"};
  if (tensor.shape != std::vector<int64_t>{head_dim / 2}) return unknown;
  std::vector<float> divisors(static_cast<size_t>(head_dim / 2));
  file.read_rows(tensor, 0, 1, divisors);
  const double factor = *std::ranges::max_element(divisors);
  if (!(factor >= 1.0 && factor <= 1e6)) return unknown;
  RopeSpec plain{.theta = theta, .rotary_dim = head_dim};
  RopeSpec scaled = plain;
  scaled.scaling = RopeScaling::kLlama3;
  scaled.factor = factor;
  scaled.original_max_positions = 8192;
  const auto before = rope_frequencies(plain, 1), after = rope_frequencies(scaled, 1);
  for (size_t i = 0; i < divisors.size(); ++i)
    if (!(std::abs(before.inverse[i] / after.inverse[i] - divisors[i]) <= 1e-4 * divisors[i])) return unknown;
  return Json{{"rope_type", "llama3"},
              {"factor", factor},
              {"low_freq_factor", scaled.low_freq_factor},
              {"high_freq_factor", scaled.high_freq_factor},
              {"original_max_position_embeddings", scaled.original_max_positions}};
}

Status add_rope(const GgufFile& file, Metadata& metadata, Json& config) {
  const double theta = metadata.number_or("rope.freq_base", 10000.0);
  const auto head_dim = config["head_dim"].get<int64_t>();
  config["rope_theta"] = theta;
  if (const int64_t rotary = metadata.integer_or("rope.dimension_count", head_dim); rotary != head_dim)
    metadata.fail("rope.dimension_count", fmt::format("{} of the {} dims of a head rotate", rotary, head_dim),
                  "only rotation of whole heads is read");
  const std::string scaling = metadata.text_or("rope.scaling.type", "none");
  if (scaling == "linear")
    config["rope_scaling"] = linear_scaling(metadata);
  else if (scaling == "yarn")
    config["rope_scaling"] = yarn_scaling(metadata);
  else if (scaling != "none")
    metadata.fail("rope.scaling.type", fmt::format("unknown scaling \"{}\"", scaling), "known: none, linear, yarn");
  if (!metadata.status().ok()) return metadata.status().error();
  const GgufTensor* factors = file.find("rope_freqs.weight");
  if (factors == nullptr) return Ok{};
  if (scaling != "none" || head_dim < 2 || head_dim % 2 != 0 || theta <= 1.0)
    return Error{file.place("rope_freqs.weight"), "stands beside another scaling of positions", ""};
  FIVEFOLD_ASSIGN(config["rope_scaling"], llama3_scaling(file, *factors, theta, head_dim));
  return Ok{};
}

Status add_decoder(const GgufFile& file, const std::string& architecture, Metadata& metadata, Json& config) {
  const int64_t heads = metadata.integer("attention.head_count"), hidden = metadata.integer("embedding_length");
  config["hidden_size"] = hidden;
  config["num_hidden_layers"] = metadata.integer("block_count");
  config["intermediate_size"] = metadata.integer("feed_forward_length");
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = metadata.integer_or("attention.head_count_kv", heads);
  const int64_t usual = heads > 0 && hidden % heads == 0 ? hidden / heads : 1;
  const int64_t head_dim = metadata.integer_or("attention.key_length", usual);
  if (const int64_t values = metadata.integer_or("attention.value_length", head_dim); values != head_dim)
    metadata.fail("attention.value_length", fmt::format("{} is not the key length {}", values, head_dim));
  config["head_dim"] = head_dim;
  config["max_position_embeddings"] = metadata.integer("context_length");
  config["rms_norm_eps"] = metadata.number("attention.layer_norm_rms_epsilon");
  config["hidden_act"] = "silu";
  if (metadata.integer_or("expert_count", 0) != 0) metadata.fail("expert_count", "models with experts are not read");
  if (metadata.integer_or("attention.sliding_window", 0) != 0)
    metadata.fail("attention.sliding_window", "windows are not read: the file does not say which layers have one");
  if (architecture == "llama") {
    config["attention_bias"] = file.find("blk.0.attn_output.bias") != nullptr;
    config["mlp_bias"] = file.find("blk.0.ffn_down.bias") != nullptr;
  }
  if (!metadata.status().ok()) return metadata.status().error();
  return add_rope(file, metadata, config);
}

void add_gpt2(Metadata& metadata, Json& config) {
  config["n_embd"] = metadata.integer("embedding_length");
  config["n_layer"] = metadata.integer("block_count");
  config["n_head"] = metadata.integer("attention.head_count");
  config["n_positions"] = metadata.integer("context_length");
  config["n_inner"] = metadata.integer("feed_forward_length");
  config["layer_norm_epsilon"] = metadata.number("attention.layer_norm_epsilon");
}

}  // namespace

std::vector<std::string> gguf_architectures() {
  std::vector<std::string> names;
  for (const Architecture& architecture : kArchitectures) names.emplace_back(architecture.name);
  return names;
}

Result<ModelSpec> read_gguf_model(const GgufFile& file) {
  FIVEFOLD_ASSIGN(const std::string name, file.text("general.architecture"));
  const auto* known =
      std::ranges::find(kArchitectures, name, [](const Architecture& a) { return std::string(a.name); });
  if (known == std::end(kArchitectures))
    return Error{file.place("general.architecture"), fmt::format("architecture \"{}\" is not read", name),
                 "read are " + join(gguf_architectures(), ", ")};
  FIVEFOLD_ASSIGN(const int64_t parts, file.integer_or("split.count", 1));
  if (parts > 1)
    return Error{file.place("split.count"), fmt::format("the file is one of {} parts", parts),
                 "join them first: llama-gguf-split --merge"};
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    return Error{file.place("token_embd.weight"), "no such matrix", "the file holds no language model"};
  Json config;
  FIVEFOLD_ASSIGN(config["_name_or_path"], file.text_or("general.name", name));
  config["architectures"] = {known->hub_class};
  config["model_type"] = known->model_type;
  config["vocab_size"] = embedding->shape[0];
  config["tie_word_embeddings"] = file.find("output.weight") == nullptr;
  Metadata metadata(file, name + ".");
  if (name == "gpt2")
    add_gpt2(metadata, config);
  else
    FIVEFOLD_TRY(add_decoder(file, name, metadata, config));
  if (!metadata.status().ok()) return metadata.status().error();
  return parse_model_config(config.dump(), file.name());
}

}  // namespace fivefold
