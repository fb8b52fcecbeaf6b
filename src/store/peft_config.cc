#include "store/peft_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/text.h"
#include "store/json_input.h"

namespace fivefold {
namespace {

using nlohmann::json;

constexpr std::string_view kAllLinear = "all-linear";
constexpr int64_t kMaxRank = 1 << 20;

// Keys that may hold anything: origin, bookkeeping, and parameters of methods that another key turns on.
const std::set<std::string_view>& ignored_keys() {
  static const std::set<std::string_view> kKeys = {
      "auto_mapping", "inference_mode", "megatron_core", "peft_version",   "qalora_group_size", "revision",
      "eva_config",   "corda_config",   "loftq_config",  "lora_ga_config", "runtime_config"};
  return kKeys;
}

// Why a setting that is not neutral is refused, and what to do; other keys get a general line.
struct Refusal {
  std::string_view key, hint;
};
constexpr Refusal kRefusals[] = {
    {"rank_pattern", "one rank for all modules is read; train the adapter again without it"},
    {"alpha_pattern", "one alpha for all modules is read; train the adapter again without it"},
    {"modules_to_save", "whole modules trained beside the adapter are not read; save the adapter without them"},
    {"trainable_token_indices", "embeddings trained beside the adapter are not read; save the adapter without them"},
    {"layers_to_transform", "an adapter covers all layers; train it again without this key"},
    {"layers_pattern", "an adapter covers all layers; train it again without this key"},
    {"layer_replication", "merge the adapter with PEFT into a model that has these layers"},
    {"exclude_modules", "name the modules of the adapter in target_modules instead"},
    {"target_parameters", "adapters of linear modules are read, not of single parameters (experts)"},
    {"lora_bias", "train the adapter again with lora_bias = false"},
};

bool is_neutral(const json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  return (value.is_object() || value.is_array() || value.is_string()) && value.empty();
}

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true);
  constexpr size_t kLongest = 60;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

// Takes the fields out of one object and keeps track of which were asked for.
class Fields {
 public:
  Fields(const json& object, const std::string& where) : object_(object), where_(where) {}

  std::string place(std::string_view key) const { return where_ + " (" + std::string(key) + ")"; }

  // nullptr when it is missing or null.
  const json* find(std::string_view key) {
    taken_.insert(std::string(key));
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  Result<bool> flag(std::string_view key) {
    const json* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return Error{place(key), "is " + shown(*value) + ", not true or false", ""};
    return value->get<bool>();
  }

  Result<double> number(std::string_view key, double otherwise) {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) return Error{place(key), "is " + shown(*value) + ", not a number", ""};
    return value->get<double>();
  }

  Result<std::string> text(std::string_view key) {
    const json* value = find(key);
    if (value == nullptr) return std::string();
    if (!value->is_string()) return Error{place(key), "is " + shown(*value) + ", not text", ""};
    return value->get<std::string>();
  }

  // Errors: a key that nobody asked for says something.
  Status check_rest() const {
    for (const auto& [key, value] : object_.items()) {
      if (taken_.contains(key) || ignored_keys().contains(key) || is_neutral(value)) continue;
      const auto* known = std::ranges::find(kRefusals, std::string_view(key), &Refusal::key);
      const std::string hint = known == std::end(kRefusals)
                                   ? "plain LoRA, rsLoRA and DoRA are read; merge such an adapter with PEFT"
                                   : std::string(known->hint);
      return Error{place(key), "is " + shown(value) + ", which is not implemented", hint};
    }
    return Ok{};
  }

 private:
  const json& object_;
  const std::string& where_;
  std::set<std::string> taken_;
};

// The kind of adapter.
Status check_kind(Fields& fields) {
  FIVEFOLD_ASSIGN(const std::string type, fields.text("peft_type"));
  if (type.empty()) return Error{fields.place("peft_type"), "is missing", "an adapter that PEFT saved has it"};
  if (type != "LORA") return Error{fields.place("peft_type"), "is \"" + type + "\"", "\"LORA\" is read"};
  FIVEFOLD_ASSIGN(const std::string task, fields.text("task_type"));
  if (!task.empty() && task != "CAUSAL_LM")
    return Error{fields.place("task_type"), "is \"" + task + "\"",
                 "adapters of language models (\"CAUSAL_LM\") are read"};
  FIVEFOLD_ASSIGN(const std::string bias, fields.text("bias"));
  if (!bias.empty() && bias != "none")
    return Error{fields.place("bias"), "is \"" + bias + "\": biases are trained too",
                 "\"none\" is read; train the adapter again with it"};
  return Ok{};
}

// Some ways to start an adapter change the base's weights as well, so that A and B alone say nothing.
Status check_start(Fields& fields) {
  const json* start = fields.find("init_lora_weights");
  if (start == nullptr || start->is_boolean()) return Ok{};
  const std::set<std::string> harmless = {"gaussian", "eva", "orthogonal"};
  if (start->is_string() && harmless.contains(start->get<std::string>())) return Ok{};
  return Error{fields.place("init_lora_weights"),
               "is " + shown(*start) + ": such an adapter belongs to a base whose weights it changed at its start",
               "let PEFT convert it: save_pretrained(..., path_initial_model_for_weight_conversion=...)"};
}

Status read_sizes(Fields& fields, PeftConfig& config) {
  const json* rank = fields.find("r");
  if (rank == nullptr) return Error{fields.place("r"), "is missing", "the rank of the adapter, for example 16"};
  // The value is compared as what it is: a library's conversion would let 2^64 + 4 be 4.
  const bool whole = rank->is_number_unsigned() ? rank->get<uint64_t>() <= uint64_t{kMaxRank} : false;
  if (!whole || rank->get<int64_t>() < 1)
    return Error{fields.place("r"), "is " + shown(*rank) + ", not a rank", "a whole number from 1 on"};
  config.rank = rank->get<int64_t>();
  FIVEFOLD_ASSIGN(config.alpha, fields.number("lora_alpha", 8.0));
  constexpr double kMaxAlpha = 1e9;
  if (!(config.alpha > 0 && config.alpha <= kMaxAlpha))
    return Error{fields.place("lora_alpha"), "is not above 0, or beyond 1e9",
                 "the adapter's output is scaled by lora_alpha / r"};
  FIVEFOLD_ASSIGN(config.dropout, fields.number("lora_dropout", 0.0));
  if (!(config.dropout >= 0 && config.dropout < 1))
    return Error{fields.place("lora_dropout"), "is not from 0 up to, and without, 1", "0 is no dropout"};
  return Ok{};
}

Status read_targets(Fields& fields, PeftConfig& config) {
  constexpr std::string_view kKey = "target_modules";
  const std::string place = fields.place(kKey);
  const json* targets = fields.find(kKey);
  if (targets == nullptr)
    return Error{place, "is missing", "a list of module names such as \"q_proj\", or \"all-linear\""};
  if (targets->is_string()) {
    if (targets->get<std::string>() != kAllLinear)
      return Error{place, "is the regular expression " + shown(*targets),
                   "write the modules' names as a list, or \"all-linear\""};
    config.targets = {std::string(kAllLinear)};
    return Ok{};
  }
  if (!targets->is_array() || targets->empty())
    return Error{place, "is " + shown(*targets), "a list of module names such as \"q_proj\", or \"all-linear\""};
  for (const json& target : *targets) {
    if (!target.is_string() || target.empty() || target.get_ref<const std::string&>().empty())
      return Error{place, "lists " + shown(target) + ", not the name of a module", "for example \"q_proj\""};
    config.targets.push_back(target.get<std::string>());
  }
  std::ranges::sort(config.targets);
  config.targets.erase(std::unique(config.targets.begin(), config.targets.end()), config.targets.end());
  if (config.targets.size() > 1 && std::ranges::binary_search(config.targets, kAllLinear))
    return Error{place, "lists \"all-linear\" beside names of modules", "write one or the other"};
  return Ok{};
}

// 8 and not 8.0: PEFT's lora_alpha is a whole number wherever it can be.
nlohmann::ordered_json plain_number(double value) {
  constexpr double kLargest = 1e9;
  if (std::abs(value) <= kLargest && std::floor(value) == value) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

double PeftConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(r) : r);
}

bool PeftConfig::targets_module(std::string_view module) const {
  return std::ranges::any_of(targets, [&](const std::string& target) {
    return target == kAllLinear || module == target || module.ends_with("." + target);
  });
}

Result<PeftConfig> parse_peft_config(std::string_view text, const std::string& where) {
  FIVEFOLD_ASSIGN(const json object, parse_json_object(text, "the file", where));
  Fields fields(object, where);
  PeftConfig config;
  FIVEFOLD_TRY(check_kind(fields));
  FIVEFOLD_TRY(check_start(fields));
  FIVEFOLD_TRY(read_sizes(fields, config));
  FIVEFOLD_TRY(read_targets(fields, config));
  FIVEFOLD_ASSIGN(config.rank_stabilized, fields.flag("use_rslora"));
  FIVEFOLD_ASSIGN(config.dora, fields.flag("use_dora"));
  FIVEFOLD_ASSIGN(config.fan_in_fan_out, fields.flag("fan_in_fan_out"));
  FIVEFOLD_ASSIGN(config.base_model, fields.text("base_model_name_or_path"));
  FIVEFOLD_TRY(fields.check_rest());
  return config;
}

std::string write_peft_config(const PeftConfig& config) {
  nlohmann::ordered_json file;
  file["alpha_pattern"] = json::object();
  file["auto_mapping"] = nullptr;
  file["base_model_name_or_path"] = config.base_model;
  if (config.base_model.empty()) file["base_model_name_or_path"] = nullptr;
  file["bias"] = "none";
  file["exclude_modules"] = nullptr;
  file["fan_in_fan_out"] = config.fan_in_fan_out;
  file["inference_mode"] = true;
  file["init_lora_weights"] = true;
  file["layer_replication"] = nullptr;
  file["layers_pattern"] = nullptr;
  file["layers_to_transform"] = nullptr;
  file["lora_alpha"] = plain_number(config.alpha);
  file["lora_bias"] = false;
  file["lora_dropout"] = config.dropout;
  file["modules_to_save"] = nullptr;
  file["peft_type"] = "LORA";
  file["r"] = config.rank;
  file["rank_pattern"] = json::object();
  file["revision"] = nullptr;
  file["target_modules"] = config.targets;
  if (config.targets == std::vector<std::string>{std::string(kAllLinear)}) file["target_modules"] = kAllLinear;
  file["target_parameters"] = nullptr;
  file["task_type"] = "CAUSAL_LM";
  file["trainable_token_indices"] = nullptr;
  file["use_dora"] = config.dora;
  file["use_rslora"] = config.rank_stabilized;
  return file.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace fivefold
