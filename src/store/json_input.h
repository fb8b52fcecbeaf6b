// Reading of untrusted JSON: a strict parse, and typed fields whose errors name the place and the field. Internal to
// the store.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace fivefold {

// A JSON object. Errors: not UTF-8 JSON, not an object, a key that stands twice in one object, nesting deeper than any
// format here needs (the bound keeps recursive work on the value from exhausting the stack). `what` names the text.
Result<nlohmann::json> parse_json_object(std::string_view text, const std::string& what, const std::string& where);

// The field `key` of an object. Errors: missing, or of another type. Pointers live as long as `object`.
Result<const nlohmann::json*> json_object_field(const nlohmann::json& object, const char* key,
                                                const std::string& where);
Result<const nlohmann::json*> json_array_field(const nlohmann::json& object, const char* key, const std::string& where);
Result<std::string> json_string_field(const nlohmann::json& object, const char* key, const std::string& where);
// A whole number in [0, 2^63).
Result<int64_t> json_size_field(const nlohmann::json& object, const char* key, const std::string& where);
// The text of hash_text.
Result<uint64_t> json_hash_field(const nlohmann::json& object, const char* key, const std::string& where);
// [begin, end] of whole numbers with 0 <= begin <= end.
Result<std::pair<int64_t, int64_t>> json_range_field(const nlohmann::json& object, const char* key,
                                                     const std::string& where);
// A list of whole numbers in [0, 2^63).
Result<std::vector<int64_t>> json_shape_field(const nlohmann::json& object, const char* key, const std::string& where);

}  // namespace fivefold
