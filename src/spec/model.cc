#include "spec/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/text.h"
#include "spec/model_family.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

constexpr uintmax_t kMaxConfigBytes = 16 << 20;
// Far above any model, and far below what overflows a count of parameters.
constexpr double kMaxParameters = 1e15;

struct NamedDType {
  const char* name;
  DType dtype;
};
constexpr NamedDType kDTypes[] = {{"float32", DType::kFloat32},
                                  {"bfloat16", DType::kBFloat16},
                                  {"float16", DType::kFloat16},
                                  {"float64", DType::kFloat64}};

// Python writes bare NaN and Infinity (Nemotron-H's time_step_limit has one), which JSON does not know: null instead.
std::string without_python_literals(const std::string& text) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      out += text[i++];
      out += text[i];
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    std::string_view literal;
    if (!in_string)
      for (const std::string_view candidate : {"-Infinity", "Infinity", "NaN"})
        if (text.compare(i, candidate.size(), candidate) == 0) literal = candidate;
    if (literal.empty()) {
      out += text[i];
    } else {
      out += "null";
      i += literal.size() - 1;
    }
  }
  return out;
}

// "llama-3.1-8b" from ".../llama-3.1-8b.json" or ".../llama-3.1-8b/config.json".
std::string name_from_path(const std::filesystem::path& path) {
  if (path.filename() == "config.json" && path.has_parent_path()) return path.parent_path().filename().string();
  return path.stem().string();
}

const ModelFamily* find_family(std::string_view architecture) {
  for (const ModelFamily& family : model_families())
    if (family.architecture == architecture) return &family;
  return nullptr;
}

const ModelFamily* find_family_of_type(std::string_view model_type) {
  for (const ModelFamily& family : model_families())
    if (family.model_type == model_type) return &family;
  return nullptr;
}

// The family by `architectures`, or by model_type where that is missing; nullptr after a problem.
const ModelFamily* read_family(ModelReader& reader) {
  const std::vector<std::string> architectures = reader.texts_or_empty("architectures");
  const std::string model_type = reader.text_or("model_type", "");
  if (!reader.ok()) return nullptr;
  const ModelFamily* by_type = find_family_of_type(model_type);
  if (architectures.empty()) {
    if (by_type) return by_type;
    if (model_type.empty())
      reader.fail("architectures", "missing, and model_type too", "known: " + join(known_architectures(), ", "));
    else
      reader.fail("model_type", fmt::format("unknown model type \"{}\"", model_type),
                  "known architectures: " + join(known_architectures(), ", "));
    return nullptr;
  }
  const ModelFamily* family = find_family(architectures.front());
  if (!family) {
    reader.fail("architectures", fmt::format("unknown architecture \"{}\"", architectures.front()),
                name_hint(architectures.front(), known_architectures()));
  } else if (by_type && by_type != family) {
    reader.fail("model_type", fmt::format("\"{}\" contradicts architecture {}", model_type, family->architecture),
                fmt::format("{} goes with model_type \"{}\"", family->architecture, family->model_type));
    return nullptr;
  }
  return family;
}

void reject_quantised(ModelReader& reader) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (!reader.has(key)) continue;
    ModelReader quantisation = reader.object(key);
    const std::string method = quantisation.text_or("quant_method", "unknown method");
    reader.fail(key, fmt::format("the weights are stored quantised ({})", method),
                "use the config.json of the unquantised model, or remove this key to plan for dequantised weights");
  }
}

DType read_dtype(ModelReader& reader) {
  const std::string older = reader.text_or("torch_dtype", ""), newer = reader.text_or("dtype", "");
  if (!older.empty() && !newer.empty() && older != newer)
    reader.fail("dtype", fmt::format("\"{}\" contradicts torch_dtype \"{}\"", newer, older), "keep one of them");
  const std::string name = !newer.empty() ? newer : older;
  if (name.empty() || name == "auto") return DType::kFloat32;
  std::vector<std::string> known;
  for (const NamedDType& entry : kDTypes) {
    if (name == entry.name || name == std::string("torch.") + entry.name) return entry.dtype;
    known.emplace_back(entry.name);
  }
  reader.fail(newer.empty() ? "torch_dtype" : "dtype", fmt::format("unknown dtype \"{}\"", name),
              name_hint(name, known));
  return DType::kFloat32;
}

// An estimate from above in floating point: sizes are each in range, but their products may not be.
double parameters_bound(const ModelSpec& model) {
  const auto h = static_cast<double>(model.hidden);
  double total = h * (2.0 * static_cast<double>(model.vocab) +
                      (model.learned_positions ? static_cast<double>(model.max_positions) : 0.0));
  for (const LayerSpec& layer : model.layers) {
    const MixerSpec& m = layer.mixer;
    const auto product = [](int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
    const double widest = std::max({h, static_cast<double>(m.q_lora_rank), static_cast<double>(m.kv_lora_rank)});
    total +=
        widest *
        (4.0 * product(m.num_heads, m.head_dim + m.v_head_dim) + static_cast<double>(m.q_lora_rank + m.kv_lora_rank) +
         4.0 * product(m.linear_key_heads, m.linear_key_dim) + 4.0 * product(m.linear_value_heads, m.linear_value_dim) +
         4.0 * product(m.ssm_heads, m.ssm_head_dim) + 4.0 * product(m.ssm_groups, m.ssm_state));
    total += 4.0 * h *
             (static_cast<double>(layer.mlp.ffn) + static_cast<double>(layer.mlp.shared_ffn) +
              product(layer.mlp.num_experts, layer.mlp.expert_ffn));
  }
  return total;
}

Result<ModelSpec> parse_object(const nlohmann::json& config, const std::string& where) {
  ModelReader reader(config, where);
  const ModelFamily* family = read_family(reader);
  if (!family) return reader.error();
  reject_quantised(reader);
  ModelSpec model;
  model.name = std::filesystem::path(reader.text_or("_name_or_path", "")).filename().string();
  if (model.name.empty()) model.name = name_from_path(where);
  model.stored_dtype = read_dtype(reader);
  family->parse(reader, model);
  if (!reader.ok()) return reader.error();
  // The multimodal Gemma 3 is read as its text model, which has an entry of its own.
  model.architecture = family->model_type == "gemma3" ? "Gemma3ForCausalLM" : std::string(family->architecture);
  if (const double bound = parameters_bound(model); bound > kMaxParameters)
    return Error{where, fmt::format("the sizes multiply to {:.1e} parameters", bound), "is one of them mistyped?"};
  return model;
}

}  // namespace

const std::vector<ModelFamily>& model_families() {
  static const std::vector<ModelFamily> all = [] {
    std::vector<ModelFamily> families;
    for (const auto& some :
         {dense_families(), expert_families(), latent_families(), gemma_families(), hybrid_families()})
      families.insert(families.end(), some.begin(), some.end());
    return families;
  }();
  return all;
}

std::vector<std::string> known_architectures() {
  std::vector<std::string> names;
  for (const ModelFamily& family : model_families()) names.emplace_back(family.architecture);
  return names;
}

Result<ModelSpec> parse_model_config(const std::string& json_text, const std::string& where) {
  // The callback-free, exception-free form: a discarded value stands for any syntax error.
  const nlohmann::json config = nlohmann::json::parse(without_python_literals(json_text), nullptr, false);
  if (config.is_discarded())
    return Error{where, "not valid JSON, or cut off", "expected a config.json as on the Hugging Face Hub"};
  if (!config.is_object())
    return Error{where, "not a JSON object", "expected a config.json as on the Hugging Face Hub"};
  return parse_object(config, where);
}

Result<ModelSpec> read_model_config(const std::filesystem::path& config_json) {
  std::error_code code;
  std::filesystem::path path = config_json;
  if (std::filesystem::is_directory(path, code)) path /= "config.json";
  if (!std::filesystem::is_regular_file(path, code)) return Error{path.string(), "no such file", ""};
  if (std::filesystem::file_size(path, code) > kMaxConfigBytes)
    return Error{path.string(), "larger than 16 MiB", "expected a config.json as on the Hugging Face Hub"};
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return Error{path.string(), "cannot be read", ""};
  return parse_model_config(text.str(), path.string());
}

std::string write_model_config(const ModelSpec& model) {
  const ModelFamily* family = find_family(model.architecture);
  FIVEFOLD_CHECK(family != nullptr, "no architecture " + model.architecture);
  Json config;
  config["architectures"] = {std::string(family->architecture)};
  config["model_type"] = std::string(family->model_type);
  config["_name_or_path"] = model.name;
  family->write(model, config);
  for (const NamedDType& entry : kDTypes)
    if (entry.dtype == model.stored_dtype) config["torch_dtype"] = entry.name;
  return config.dump(2) + "\n";
}

}  // namespace fivefold
