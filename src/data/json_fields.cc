#include "data/json_fields.h"

namespace fivefold {

Result<JsonFields> JsonFields::of(const nlohmann::json& json, std::string where) {
  if (!json.is_object()) return Error{std::move(where), "is not an object", ""};
  return JsonFields(json, std::move(where));
}

const nlohmann::json* JsonFields::find(const std::string& key) const {
  const auto found = json_->find(key);
  return found == json_->end() || found->is_null() ? nullptr : &*found;
}

Result<const nlohmann::json*> JsonFields::required(const std::string& key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return Error{where_, "has no \"" + key + "\"", ""};
  return value;
}

Result<const nlohmann::json*> JsonFields::required_array(const std::string& key) const {
  FIVEFOLD_ASSIGN(const nlohmann::json* value, required(key));
  if (!value->is_array()) return Error{place(key), "is not an array", ""};
  return value;
}

Result<std::string> JsonFields::required_string(const std::string& key) const {
  FIVEFOLD_TRY(required(key));
  return string_or(key, "");
}

Result<int64_t> JsonFields::required_integer(const std::string& key) const {
  FIVEFOLD_TRY(required(key));
  return integer_or(key, 0);
}

Result<std::string> JsonFields::string_or(const std::string& key, const std::string& fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) return Error{place(key), "is not a string", ""};
  return value->get<std::string>();
}

Result<bool> JsonFields::boolean_or(const std::string& key, bool fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return Error{place(key), "is not true or false", ""};
  return value->get<bool>();
}

Result<int64_t> JsonFields::integer_or(const std::string& key, int64_t fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits) return Error{place(key), "is not an integer", ""};
  return value->get<int64_t>();
}

}  // namespace fivefold
