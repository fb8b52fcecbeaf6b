#include "spec/model_reader.h"

#include <fmt/format.h>

#include <cmath>

namespace fivefold {
namespace {

using nlohmann::json;

// The value as in the file, cut to what fits on a line. Lists and objects are only named: they may nest without bound.
std::string shown(const json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

}  // namespace

ModelReader::ModelReader(const json& object, std::string where, std::string prefix)
    : object_(&object),
      where_(std::move(where)),
      prefix_(std::move(prefix)),
      error_(std::make_shared<std::optional<Error>>()) {}

const json* ModelReader::find(const std::string& key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool ModelReader::has(const std::string& key) const { return find(key) != nullptr; }

bool ModelReader::has_null(const std::string& key) const {
  const auto it = object_->find(key);
  return it != object_->end() && it->is_null();
}

void ModelReader::fail(const std::string& key, std::string problem, std::string hint) {
  if (!ok()) return;
  error_->emplace(Error{where_ + ": " + prefix_ + key, std::move(problem), std::move(hint)});
}

void ModelReader::wrong_type(const std::string& key, const char* expected, const json& found) {
  fail(key, fmt::format("expected {}, found {}", expected, shown(found)));
}

int64_t ModelReader::checked_integer(const std::string& key, const json& value, IntegerRange range) {
  if (!value.is_number_integer()) {
    wrong_type(key, "a whole number", value);
    return range.min;
  }
  const bool beyond = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (beyond || value.get<int64_t>() < range.min || value.get<int64_t>() > range.max) {
    fail(key, fmt::format("{} is out of range", shown(value)), fmt::format("{} to {}", range.min, range.max));
    return range.min;
  }
  return value.get<int64_t>();
}

double ModelReader::checked_number(const std::string& key, const json& value, double min, double max) {
  if (!value.is_number()) {
    wrong_type(key, "a number", value);
    return min;
  }
  const double x = value.get<double>();
  if (!(x >= min && x <= max)) {
    fail(key, fmt::format("{} is out of range", shown(value)), fmt::format("{} to {}", min, max));
    return min;
  }
  return x;
}

int64_t ModelReader::integer(const std::string& key, IntegerRange range) {
  if (const json* value = find(key)) return checked_integer(key, *value, range);
  fail(key, "missing");
  return range.min;
}

int64_t ModelReader::integer_or(const std::string& key, int64_t fallback, IntegerRange range) {
  const json* value = find(key);
  return value ? checked_integer(key, *value, range) : fallback;
}

double ModelReader::number(const std::string& key, double min, double max) {
  if (const json* value = find(key)) return checked_number(key, *value, min, max);
  fail(key, "missing");
  return min;
}

double ModelReader::number_or(const std::string& key, double fallback, double min, double max) {
  const json* value = find(key);
  return value ? checked_number(key, *value, min, max) : fallback;
}

bool ModelReader::boolean_or(const std::string& key, bool fallback) {
  const json* value = find(key);
  if (!value) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  wrong_type(key, "true or false", *value);
  return fallback;
}

std::string ModelReader::text_or(const std::string& key, const std::string& fallback) {
  const json* value = find(key);
  if (!value) return fallback;
  if (value->is_string()) return value->get<std::string>();
  wrong_type(key, "a string", *value);
  return fallback;
}

std::vector<std::string> ModelReader::texts_or_empty(const std::string& key) {
  std::vector<std::string> texts;
  const json* value = find(key);
  if (!value) return texts;
  if (!value->is_array())
    wrong_type(key, "a list of strings", *value);
  else
    for (const json& item : *value) {
      if (item.is_string())
        texts.push_back(item.get<std::string>());
      else
        wrong_type(key, "a list of strings", item);
    }
  return texts;
}

std::vector<int64_t> ModelReader::integers_or_empty(const std::string& key, IntegerRange range) {
  std::vector<int64_t> integers;
  const json* value = find(key);
  if (!value) return integers;
  if (!value->is_array())
    wrong_type(key, "a list of whole numbers", *value);
  else
    for (const json& item : *value) integers.push_back(checked_integer(key, item, range));
  return integers;
}

ModelReader ModelReader::object(const std::string& key) {
  static const json kEmpty = json::object();
  const json* value = find(key);
  if (value && !value->is_object()) {
    wrong_type(key, "an object", *value);
    value = nullptr;
  }
  ModelReader nested(value ? *value : kEmpty, where_, prefix_ + key + ".");
  nested.error_ = error_;
  return nested;
}

void ModelReader::require_false(const std::string& key, const std::string& why) {
  if (boolean_or(key, false)) fail(key, "true is not supported: " + why);
}

}  // namespace fivefold
