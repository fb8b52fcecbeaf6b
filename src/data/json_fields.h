// Typed access to a JSON object whose author is not trusted: every miss is an Error that names the key.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace fivefold {

class JsonFields {
 public:
  // `where` names the object ("tokenizer.json: model"). Errors: not an object.
  static Result<JsonFields> of(const nlohmann::json& json, std::string where);

  const std::string& where() const { return where_; }
  // "where.key", for errors about a value.
  std::string place(const std::string& key) const { return where_ + "." + key; }

  // Null when the key is missing or its value is null.
  const nlohmann::json* find(const std::string& key) const;
  // Errors: missing, null, wrong type.
  Result<const nlohmann::json*> required(const std::string& key) const;
  Result<std::string> required_string(const std::string& key) const;
  Result<int64_t> required_integer(const std::string& key) const;
  Result<const nlohmann::json*> required_array(const std::string& key) const;
  // Missing or null gives the fallback. Errors: wrong type.
  Result<std::string> string_or(const std::string& key, const std::string& fallback) const;
  Result<bool> boolean_or(const std::string& key, bool fallback) const;
  Result<int64_t> integer_or(const std::string& key, int64_t fallback) const;

 private:
  JsonFields(const nlohmann::json& json, std::string where) : json_(&json), where_(std::move(where)) {}
  const nlohmann::json* json_;
  std::string where_;
};

}  // namespace fivefold
