#include "exporters/foreign_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace fivefold {
namespace {

std::string normalized(std::string_view name) {
  std::string key(name);
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

// The whole text as a number; a sign, "1_000" of Python and "1e3" are numbers.
std::optional<double> parse_number(std::string text) {
  std::erase(text, '_');
  if (text.starts_with('+')) text.erase(0, 1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty() || !std::isfinite(value)) return {};
  return value;
}

std::optional<double> as_number(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return parse_number(value.get<std::string>());
  return {};
}

bool is_absent(const nlohmann::json& value) {
  return value.is_null() || (value.is_string() && (value == "auto" || value == "" || value == "None"));
}

constexpr size_t kMaxShownValue = 60;

}  // namespace

std::string foreign_value_text(const nlohmann::json& value) {
  std::string text = value.is_string() ? value.get<std::string>()
                                       : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  if (text.size() > kMaxShownValue) text = text.substr(0, kMaxShownValue) + "...";
  return text;
}

void ForeignSettings::store(ForeignSetting setting) {
  const auto [entry, inserted] = index_.emplace(normalized(setting.lookup_name()), settings_.size());
  if (inserted)
    settings_.push_back(std::move(setting));
  else
    settings_[entry->second] = std::move(setting);
}

void ForeignSettings::add(std::string name, nlohmann::json value, std::string where) {
  store({std::move(name), std::move(value), std::move(where)});
}

void ForeignSettings::add_as(std::string_view key, const ForeignSetting& setting, nlohmann::json value) {
  store({setting.name, std::move(value), setting.where, std::string(key)});
}

void ForeignSettings::add_all(const ForeignSettings& other) {
  for (const ForeignSetting& setting : other.settings_) store(setting);
  errors_.insert(errors_.end(), other.errors_.begin(), other.errors_.end());
}

void ForeignSettings::add_unread(const ForeignSettings& other) {
  for (const ForeignSetting* setting : other.unread()) store(*setting);
  errors_.insert(errors_.end(), other.errors_.begin(), other.errors_.end());
}

const ForeignSetting* ForeignSettings::lookup(std::string_view name) const {
  const auto found = index_.find(normalized(name));
  return found == index_.end() ? nullptr : &settings_[found->second];
}

bool ForeignSettings::has(std::string_view name) const {
  const ForeignSetting* setting = lookup(name);
  return setting != nullptr && !setting->value.is_null();
}

const ForeignSetting* ForeignSettings::find(std::string_view name) {
  asked_[normalized(name)] = true;
  const ForeignSetting* setting = lookup(name);
  return setting == nullptr || setting->value.is_null() ? nullptr : setting;
}

const ForeignSetting* ForeignSettings::find_first(std::initializer_list<std::string_view> names) {
  const ForeignSetting* first = nullptr;
  for (const std::string_view name : names)
    if (const ForeignSetting* setting = find(name); setting != nullptr && first == nullptr) first = setting;
  return first;
}

std::optional<double> ForeignSettings::number(std::string_view name, double min, double max) {
  const ForeignSetting* setting = find(name);
  if (setting == nullptr || is_absent(setting->value)) return {};
  const std::optional<double> value = as_number(setting->value);
  if (!value) {
    fail(name, fmt::format("`{}` is not a number", foreign_value_text(setting->value)),
         setting->value.is_string() && setting->value.get<std::string>().find('$') != std::string::npos
             ? "give the variable: --env NAME=VALUE"
             : "");
    return {};
  }
  if (*value < min || *value > max) {
    fail(name, fmt::format("{} is out of range", foreign_value_text(setting->value)),
         fmt::format("from {:g} to {:g}", min, max));
    return {};
  }
  return value;
}

std::optional<int64_t> ForeignSettings::integer(std::string_view name, int64_t min, int64_t max) {
  const std::optional<double> value = number(name, static_cast<double>(min), static_cast<double>(max));
  if (!value) return {};
  if (*value != std::floor(*value)) {
    fail(name, fmt::format("{:g} is not a whole number", *value));
    return {};
  }
  return static_cast<int64_t>(*value);
}

std::optional<std::string> ForeignSettings::text(std::string_view name) {
  const ForeignSetting* setting = find(name);
  if (setting == nullptr || (setting->value.is_string() && setting->value.get_ref<const std::string&>().empty()))
    return {};
  if (setting->value.is_string()) return setting->value.get<std::string>();
  if (setting->value.is_number() || setting->value.is_boolean()) return foreign_value_text(setting->value);
  fail(name, fmt::format("`{}` is not a text", foreign_value_text(setting->value)));
  return {};
}

std::optional<bool> ForeignSettings::boolean(std::string_view name) {
  const ForeignSetting* setting = find(name);
  if (setting == nullptr || is_absent(setting->value)) return {};
  if (setting->value.is_boolean()) return setting->value.get<bool>();
  if (setting->value.is_number()) return setting->value.get<double>() != 0;
  if (setting->value.is_string()) {
    std::string word = setting->value.get<std::string>();
    std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
    if (word == "true" || word == "yes" || word == "1" || word == "on") return true;
    if (word == "false" || word == "no" || word == "0" || word == "off" || word == "none") return false;
  }
  fail(name, fmt::format("`{}` is neither true nor false", foreign_value_text(setting->value)));
  return {};
}

std::vector<std::string> ForeignSettings::texts(std::string_view name) {
  const ForeignSetting* setting = find(name);
  if (setting == nullptr || setting->value.is_boolean()) return {};
  if (setting->value.is_string()) return {setting->value.get<std::string>()};
  std::vector<std::string> all;
  if (setting->value.is_array())
    for (const nlohmann::json& value : setting->value) all.push_back(foreign_value_text(value));
  else
    fail(name, fmt::format("`{}` is not a list", foreign_value_text(setting->value)));
  return all;
}

void ForeignSettings::fail(std::string_view name, std::string problem, std::string hint) {
  const ForeignSetting* setting = lookup(name);
  errors_.push_back({setting == nullptr ? std::string(name) : setting->where + ": " + setting->name, std::move(problem),
                     std::move(hint)});
}

std::string ForeignSettings::where(std::string_view name) const {
  const ForeignSetting* setting = lookup(name);
  return setting == nullptr ? "" : setting->where;
}

std::vector<const ForeignSetting*> ForeignSettings::unread() const {
  std::vector<const ForeignSetting*> result;
  for (const ForeignSetting& setting : settings_)
    if (!asked_.contains(normalized(setting.lookup_name())) && !setting.value.is_null()) result.push_back(&setting);
  return result;
}

ForeignSettings read_flag_settings(const std::vector<std::string>& words, const std::vector<std::string>& places,
                                   std::vector<std::string>& positional) {
  const auto is_flag = [](const std::string& word) {
    return word.size() > 1 && word[0] == '-' && !std::isdigit(static_cast<unsigned char>(word[1])) && word[1] != '.';
  };
  ForeignSettings settings;
  for (size_t i = 0; i < words.size();) {
    const std::string& word = words[i];
    const std::string place = i < places.size() ? places[i] : "";
    if (!is_flag(word)) {
      positional.push_back(word);
      ++i;
      continue;
    }
    std::string name = word.substr(word.starts_with("--") ? 2 : 1);
    std::vector<std::string> values;
    if (const size_t equals = name.find('='); equals != std::string::npos) {
      values.push_back(name.substr(equals + 1));
      name.resize(equals);
    }
    for (++i; i < words.size() && !is_flag(words[i]) && words[i] != "--"; ++i) values.push_back(words[i]);
    if (i < words.size() && words[i] == "--") ++i;
    if (values.empty())
      settings.add(name, true, place);
    else if (values.size() == 1)
      settings.add(name, values[0], place);
    else
      settings.add(name, values, place);
  }
  return settings;
}

}  // namespace fivefold
