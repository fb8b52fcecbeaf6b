// Readers of JSON, TOML and YAML into ForeignSettings.
#include <fmt/format.h>
#include <toml++/toml.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "base/nesting.h"
#include "exporters/foreign_settings.h"

namespace fivefold {
namespace {

// Of a file; a configuration is a few kB.
constexpr size_t kMaxText = size_t{4} << 20;
// Values of one file: aliases in YAML can stand for far more than the text holds.
constexpr int kMaxValues = 100000;

std::string place(const std::string& where, size_t line) { return fmt::format("{}:{}", where, line); }

size_t line_of(std::string_view text, size_t at) {
  return 1 + static_cast<size_t>(std::count(text.begin(), text.begin() + static_cast<int64_t>(at), '\n'));
}

Status check_size(std::string_view text, const std::string& where) {
  if (text.size() > kMaxText) return Error{where, "has more than 4 MiB", "a configuration is a small file"};
  return Ok{};
}

// A list of plain values is one setting, a list of tables too: only tables have dotted names.
void add_json(ForeignSettings& settings, const nlohmann::json& value, const std::string& name, std::string_view text,
              size_t from, const std::string& where) {
  if (!value.is_object() || (value.empty() && !name.empty())) {
    settings.add(name, value, place(where, line_of(text, from)));
    return;
  }
  for (const auto& [key, inner] : value.items()) {
    // Where the key is written: the first place behind the one that holds it.
    const size_t found = text.find('"' + key + '"', from);
    add_json(settings, inner, name.empty() ? key : name + "." + key, text,
             found == std::string_view::npos ? from : found, where);
  }
}

nlohmann::json json_of(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return value->get();
  if (const auto* value = node.as_integer()) return value->get();
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* array = node.as_array()) {
    nlohmann::json list = nlohmann::json::array();
    for (const toml::node& item : *array) list.push_back(json_of(item));
    return list;
  }
  if (const auto* table = node.as_table()) {
    nlohmann::json object = nlohmann::json::object();
    for (const auto& [key, value] : *table) object[std::string(key.str())] = json_of(value);
    return object;
  }
  return nullptr;
}

void add_toml(ForeignSettings& settings, const toml::table& table, const std::string& prefix,
              const std::string& where) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* inner = node.as_table(); inner != nullptr && !inner->empty())
      add_toml(settings, *inner, name + ".", where);
    else
      settings.add(name, json_of(node), place(where, node.source().begin.line));
  }
}

// YAML 1.1 as PyYAML reads it, which the frameworks use: yes and no are words there, and 1e-4 is text that they turn
// into a number later, as the reader of a setting does here.
nlohmann::json scalar_of(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // quoted
  if (text == "~" || text == "null" || text == "Null" || text == "NULL" || text.empty()) return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return text;
}

class YamlReader {
 public:
  YamlReader(ForeignSettings& settings, const std::string& where) : settings_(settings), where_(where) {}

  Status add(const YAML::Node& node, const std::string& prefix, int depth) {
    if (depth > kMaxJsonNesting) return Error{where_, "is nested too deeply", ""};
    for (const auto& entry : node) {
      if (++values_ > kMaxValues) return too_many();
      const std::string line = place(where_, static_cast<size_t>(entry.first.Mark().line) + 1);
      if (!entry.first.IsScalar()) return Error{line, "a key that is no text", ""};
      const std::string name = prefix + entry.first.Scalar();
      if (entry.second.IsMap() && entry.second.size() > 0) {
        FIVEFOLD_TRY(add(entry.second, name + ".", depth + 1));
      } else {
        FIVEFOLD_ASSIGN(nlohmann::json value, json(entry.second, depth + 1));
        settings_.add(name, std::move(value), line);
      }
    }
    return Ok{};
  }

 private:
  Error too_many() const { return Error{where_, "stands for more values than a configuration has", ""}; }

  Result<nlohmann::json> json(const YAML::Node& node, int depth) {
    if (depth > kMaxJsonNesting) return Error{where_, "is nested too deeply", ""};
    if (++values_ > kMaxValues) return too_many();
    if (node.IsScalar()) return scalar_of(node);
    nlohmann::json value;
    if (node.IsSequence()) {
      value = nlohmann::json::array();
      for (const YAML::Node& item : node) {
        FIVEFOLD_ASSIGN(nlohmann::json inner, json(item, depth + 1));
        value.push_back(std::move(inner));
      }
    } else if (node.IsMap()) {
      value = nlohmann::json::object();
      for (const auto& entry : node) {
        FIVEFOLD_ASSIGN(nlohmann::json inner, json(entry.second, depth + 1));
        if (entry.first.IsScalar()) value[entry.first.Scalar()] = std::move(inner);
      }
    }
    return value;
  }

  ForeignSettings& settings_;
  const std::string& where_;
  int values_ = 0;
};

}  // namespace

Result<ForeignSettings> read_json_settings(std::string_view text, const std::string& where) {
  FIVEFOLD_TRY(check_size(text, where));
  FIVEFOLD_TRY(check_json_nesting(text, where));
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    return Error{place(where, line_of(text, std::min(text.size(), error.byte))), "is not JSON",
                 "a missing or surplus comma, quote or bracket"};
  } catch (const nlohmann::json::exception&) {
    return Error{where, "holds a number that no computer word holds", ""};
  }
  if (!value.is_object()) return Error{where, "is no JSON object", ""};
  ForeignSettings settings;
  add_json(settings, value, "", text, 0, where);
  return settings;
}

Result<ForeignSettings> read_toml_settings(std::string_view text, const std::string& where) {
  FIVEFOLD_TRY(check_size(text, where));
  FIVEFOLD_TRY(check_toml_nesting(text, where));
  try {
    ForeignSettings settings;
    add_toml(settings, toml::parse(text, where), "", where);
    return settings;
  } catch (const toml::parse_error& error) {
    return Error{place(where, error.source().begin.line), std::string(error.description()), ""};
  }
}

Result<ForeignSettings> read_yaml_settings(std::string_view text, const std::string& where) {
  FIVEFOLD_TRY(check_size(text, where));
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    ForeignSettings settings;
    if (root.IsNull()) return settings;
    if (!root.IsMap()) return Error{where, "is no YAML mapping of names to values", ""};
    FIVEFOLD_TRY(YamlReader(settings, where).add(root, "", 0));
    return settings;
  } catch (const YAML::Exception& error) {
    return Error{place(where, static_cast<size_t>(std::max(0, error.mark.line)) + 1), error.msg, ""};
  }
}

}  // namespace fivefold
