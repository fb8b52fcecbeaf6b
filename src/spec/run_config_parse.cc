#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "base/nesting.h"
#include "base/text.h"
#include "spec/run_config_io.h"
#include "spec/run_config_keys.h"
#include "spec/toml_number.h"

namespace fivefold {
namespace {

constexpr int64_t kMaxStageLayers = 1 << 20;

// What a TOML value is, for "expects an integer, got ...".
std::string describe(const toml::node& node) {
  if (const auto* text = node.as_string()) return fmt::format("\"{}\"", text->get());
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list";
  std::ostringstream text;
  node.visit([&](const auto& value) { text << value; });
  return text.str();
}

// "300B" -> 3e11. Negative: not a count.
int64_t parse_count(std::string_view text) {
  double number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc() || !std::isfinite(number) || number < 0) return -1;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
  for (const auto& [name, factor] : kUnits) {
    const double count = number * factor;
    if (unit == name) return count <= 1e18 && count == std::floor(count) ? static_cast<int64_t>(count) : -1;
  }
  return -1;
}

// Stores a TOML value in the field of a key. False: the value is not what the key takes, and the hint, which comes in
// as the default, may have become a nearer valid value.
struct Assign {
  const toml::node& node;
  const Range& range;
  std::string& hint;

  // Whether a number is in range; if not, the nearest one that is becomes the hint.
  bool in_range(double x) const {
    if (range.contains(x)) return true;
    if (x <= range.min && !range.open_min) hint = fmt::format("use {}", range.min);
    if (x >= range.max && !range.open_max) hint = fmt::format("use {:.17g}", range.max);
    return false;
  }
  template <typename Int>
  bool integer(Int* field) const {
    const auto* value = node.as_integer();
    if (!value || !in_range(static_cast<double>(value->get()))) return false;
    if (value->get() > std::numeric_limits<Int>::max()) return false;
    *field = static_cast<Int>(value->get());
    return true;
  }
  bool number(const toml::node& from, double* field) const {
    if (!from.is_number()) return false;
    const double value = toml_number(from);
    if (!std::isfinite(value) || !in_range(value)) return false;
    *field = value;
    return true;
  }

  bool operator()(bool* field) const {
    if (!node.is_boolean()) return false;
    *field = node.as_boolean()->get();
    return true;
  }
  bool operator()(int* field) const { return integer(field); }
  bool operator()(int64_t* field) const { return integer(field); }
  bool operator()(double* field) const { return number(node, field); }
  bool operator()(std::string* field) const {
    hint = "write it in quotes";
    if (!node.is_string()) return false;
    *field = node.as_string()->get();
    return true;
  }
  bool operator()(StringList* field) const {
    if (!node.is_array()) return false;
    StringList list;
    for (const toml::node& element : *node.as_array()) {
      if (!element.is_string()) return false;
      list.push_back(element.as_string()->get());
    }
    *field = std::move(list);
    return true;
  }
  bool operator()(NumberPair* field) const {
    const toml::array* array = node.as_array();
    NumberPair pair;
    if (!array || array->size() != 2 || !number(*array->get(0), &pair[0]) || !number(*array->get(1), &pair[1]))
      return false;
    *field = pair;
    return true;
  }
  bool operator()(OptionalDType* field) const {
    if (!node.is_string()) return false;
    const std::string& text = node.as_string()->get();
    if (text == "auto") {
      field->reset();
      return true;
    }
    for (const DType dtype : precision_dtypes()) {
      if (to_string(dtype) != text) continue;
      *field = dtype;
      return true;
    }
    return false;
  }
  bool operator()(const EnumRef& field) const {
    if (!node.is_string()) return false;
    const std::string& text = node.as_string()->get();
    for (size_t i = 0; i < field.names.size(); ++i) {
      if (field.names[i] != text) continue;
      *field.index = static_cast<uint8_t>(i);
      return true;
    }
    if (const auto near = nearest_name(text, {field.names.begin(), field.names.end()}))
      hint = fmt::format("did you mean {}?", *near);
    return false;
  }
  bool operator()(const SizeRef& field) const {
    if (node.is_string()) {
      const Result<int64_t> bytes = parse_bytes(node.as_string()->get());
      if (!bytes.ok()) {
        hint = bytes.error().hint;
        return false;
      }
      *field.bytes = *bytes;
      return true;
    }
    return integer(field.bytes);
  }
  bool operator()(const StagesRef& field) const {
    if (node.is_string()) {
      for (size_t i = 0; i < std::size(kStageCutNames); ++i) {
        if (kStageCutNames[i] != node.as_string()->get()) continue;
        *field.stages = {.cut = static_cast<StageCut>(i)};
        return true;
      }
      if (const auto near =
              nearest_name(node.as_string()->get(), {std::begin(kStageCutNames), std::end(kStageCutNames)}))
        hint = fmt::format("did you mean {}?", *near);
      return false;
    }
    if (!node.is_array()) return false;
    StageLayers listed{.cut = StageCut::kListed};
    for (const toml::node& element : *node.as_array()) {
      const auto* layers = element.as_integer();
      if (!layers || layers->get() < 0 || layers->get() > kMaxStageLayers) return false;
      listed.layers.push_back(layers->get());
    }
    *field.stages = std::move(listed);
    return true;
  }
  bool operator()(const CountRef& field) const {
    if (node.is_integer()) return integer(field.count);
    int64_t count = -1;
    if (node.is_string()) count = parse_count(node.as_string()->get());
    if (node.is_floating_point()) count = parse_count(fmt::format("{}", node.as_floating_point()->get()));
    if (count >= 0) *field.count = count;
    return count >= 0;
  }
};

std::string default_hint(const ConfigKey& key) {
  RunConfig defaults;
  return "default: " + setting_text(key.field(defaults));
}

using KeySet = std::set<const ConfigKey*>;

void assign(const ConfigKey& key, const toml::node& node, const std::string& where, LoadedConfig& out,
            KeySet& assigned) {
  std::string hint = default_hint(key);
  if (std::visit(Assign{node, key.range, hint}, key.field(out.config)))
    assigned.insert(&key);
  else
    out.errors.push_back({where, fmt::format("{} is not {}", describe(node), expected_value(key)), hint});
}

void apply_table(const toml::table& root, const std::string& where, LoadedConfig& out, KeySet& assigned) {
  const auto place = [&](const toml::node& node, std::string_view path) {
    return fmt::format("{}:{}: {}", where, node.source().begin.line, path);
  };
  for (const auto& [section, content] : root) {
    const auto sections = config_sections();
    const bool known =
        std::any_of(sections.begin(), sections.end(), [name = section.str()](const auto& s) { return s.name == name; });
    const toml::table* table = content.as_table();
    if (!table && known) {
      out.errors.push_back(
          {place(content, section.str()), "is a section, not a key", fmt::format("write [{}]", section.str())});
    } else if (!table) {
      out.errors.push_back(
          {place(content, section.str()), "unknown key outside of any section", unknown_key_hint("", section.str())});
    } else if (!known) {
      out.errors.push_back(
          {place(content, fmt::format("[{}]", section.str())), "unknown section", unknown_section_hint(section.str())});
    } else {
      for (const auto& [name, value] : *table) {
        const std::string path = fmt::format("{}.{}", section.str(), name.str());
        if (const ConfigKey* key = find_config_key(path))
          assign(*key, value, place(value, path), out, assigned);
        else
          out.errors.push_back({place(value, path), "unknown key", unknown_key_hint(section.str(), name.str())});
      }
    }
  }
}

Result<toml::table> parse_toml(std::string_view text, const std::string& where) {
  FIVEFOLD_TRY(check_toml_nesting(text, where));
  try {
    return toml::parse(text, where);
  } catch (const toml::parse_error& error) {
    return Error{fmt::format("{}:{}", where, error.source().begin.line),
                 "is not TOML: " + std::string(error.description()), ""};
  }
}

void apply_text(std::string_view text, const std::string& where, LoadedConfig& out, KeySet& assigned) {
  const Result<toml::table> table = parse_toml(text, where);
  if (table.ok())
    apply_table(*table, where, out, assigned);
  else
    out.errors.push_back(table.error());
}

void apply_file(const std::filesystem::path& path, LoadedConfig& out, KeySet& assigned) {
  std::error_code status;
  if (!std::filesystem::is_regular_file(path, status)) {
    const bool exists = std::filesystem::exists(path, status);
    out.errors.push_back({path.string(), exists ? "is not a file" : "does not exist", "give the path of a TOML file"});
    return;
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file)
    out.errors.push_back({path.string(), "cannot be read", ""});
  else
    apply_text(text.view(), path.string(), out, assigned);
}

// The value of a setting as TOML, by the type of its key: text needs no quotes and lists no brackets.
std::string as_toml(const FieldRef& field, std::string_view text) {
  const auto list = [](std::string_view items, bool quote) {
    if (items.starts_with('[') && items.ends_with(']')) items = items.substr(1, items.size() - 2);
    std::vector<std::string> elements;
    if (!items.empty()) elements = split(items, ',');
    for (std::string& element : elements) {
      const size_t begin = element.find_first_not_of(' '), end = element.find_last_not_of(' ');
      element = begin == std::string::npos ? "" : element.substr(begin, end - begin + 1);
      if (quote && !element.starts_with('"') && !element.starts_with('\'')) element = toml_string(element);
    }
    return fmt::format("[{}]", join(elements, ", "));
  };
  if (std::holds_alternative<StringList*>(field)) return list(text, true);
  if (std::holds_alternative<NumberPair*>(field)) return list(text, false);
  if (std::holds_alternative<StagesRef>(field)) {
    const bool is_list = text.find_first_of("[,0123456789") != std::string_view::npos;
    return is_list ? list(text, false) : toml_string(text);
  }
  const bool is_text = std::holds_alternative<std::string*>(field) || std::holds_alternative<OptionalDType*>(field) ||
                       std::holds_alternative<EnumRef>(field) || std::holds_alternative<SizeRef>(field) ||
                       std::holds_alternative<CountRef>(field);
  const bool has_quotes =
      text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front();
  return is_text && !has_quotes ? toml_string(text) : std::string(text);
}

void apply_setting(const std::string& setting, const std::string& origin, LoadedConfig& out, KeySet& assigned) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos) {
    out.errors.push_back({origin + setting, "has no value", "write KEY=VALUE, for example parallel.dp=2"});
    return;
  }
  const std::string path = setting.substr(0, equals), text = setting.substr(equals + 1), where = origin + path;
  const ConfigKey* key = find_config_key(path);
  if (!key) {
    const size_t dot = path.find('.');
    const std::string section = dot == std::string::npos ? "" : path.substr(0, dot);
    out.errors.push_back({where, "unknown key", unknown_key_hint(section, path.substr(dot + 1))});
    return;
  }
  const Result<toml::table> parsed = parse_toml("value = " + as_toml(key->field(out.config), text), where);
  if (parsed.ok() && parsed->size() == 1) {
    assign(*key, *parsed->get("value"), where, out, assigned);
  } else {
    out.errors.push_back({where, fmt::format("\"{}\" is not {}", text, expected_value(*key)), default_hint(*key)});
  }
}

// Two keys that say the same in two ways: of the two the stronger source's counts.
void drop_overruled(const KeySet& assigned, RunConfig& config) {
  const auto has = [&](std::string_view path) { return assigned.contains(find_config_key(path)); };
  const bool steps = has("run.steps"), tokens = has("run.tokens"), name = has("model.name"), file = has("model.config");
  if (steps && !tokens) config.run.tokens = RunSection{}.tokens;
  if (tokens && !steps) config.run.steps = RunSection{}.steps;
  if (name && !file) config.model.config = ModelConfig{}.config;
  if (file && !name) config.model.name = ModelConfig{}.name;
}

}  // namespace

LoadedConfig parse_config(std::string_view toml, const std::string& where, const RunConfig& base) {
  LoadedConfig out{.config = base, .errors = {}};
  KeySet assigned;
  apply_text(toml, where, out, assigned);
  drop_overruled(assigned, out.config);
  return out;
}

LoadedConfig load_config(const ConfigSources& sources, const RunConfig& base) {
  LoadedConfig out{.config = base, .errors = {}};
  const auto layer = [&out](KeySource source, auto&& apply) {
    KeySet assigned;
    apply(assigned);
    drop_overruled(assigned, out.config);
    for (const ConfigKey* key : assigned) out.keys[key->path()] = source;
  };
  if (!sources.file.empty())
    layer(KeySource::kFile, [&](KeySet& assigned) { apply_file(sources.file, out, assigned); });
  layer(KeySource::kSetting, [&](KeySet& assigned) {
    for (const std::string& setting : sources.set) apply_setting(setting, "--set ", out, assigned);
  });
  layer(KeySource::kFlag, [&](KeySet& assigned) {
    for (const std::string& setting : sources.flags) apply_setting(setting, "", out, assigned);
  });
  return out;
}

}  // namespace fivefold
