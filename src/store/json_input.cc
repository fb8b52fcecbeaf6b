#include "store/json_input.h"

#include <limits>
#include <set>

#include "store/hash.h"

namespace fivefold {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;

// Leaves the parser from within its callback; never leaves this file.
struct Refused {
  std::string problem;
};

// Called by the parser at each event: refuses repeated keys and deep nesting.
class StructureGuard {
 public:
  void operator()(int depth, json::parse_event_t event, const json& value) {
    if (depth > kMaxDepth) throw Refused{"is nested deeper than " + std::to_string(kMaxDepth) + " levels"};
    if (event == json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) throw Refused{"has the key '" + key + "' twice"};
    }
  }

 private:
  std::vector<std::set<std::string>> keys_;
};

Result<const json*> field(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) return Error{where, "'" + std::string(key) + "' is missing", ""};
  return &*found;
}

Error mistyped(const char* key, const std::string& expected, const std::string& where) {
  return Error{where, "'" + std::string(key) + "' must be " + expected, ""};
}

bool is_size(const json& value) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
  return value.get<int64_t>() >= 0;
}

}  // namespace

Result<json> parse_json_object(std::string_view text, const std::string& what, const std::string& where) {
  // The library takes a NUL for the end of its input.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    return Error{where, what + " is not UTF-8 JSON: a NUL at byte " + std::to_string(nul), ""};
  StructureGuard guard;
  const auto callback = [&guard](int depth, json::parse_event_t event, json& value) {
    guard(depth, event, value);
    return true;
  };
  try {
    json value = json::parse(text, callback);
    if (!value.is_object()) return Error{where, what + " is not a JSON object", ""};
    return value;
  } catch (const json::parse_error& error) {
    return Error{where, what + " is not UTF-8 JSON: wrong at byte " + std::to_string(error.byte), ""};
  } catch (const json::out_of_range&) {
    return Error{where, what + " has a number that is too large", ""};
  } catch (const Refused& refused) {
    return Error{where, what + " " + refused.problem, ""};
  }
}

Result<const json*> json_object_field(const json& object, const char* key, const std::string& where) {
  FIVEFOLD_ASSIGN(const json* value, field(object, key, where));
  if (!value->is_object()) return mistyped(key, "an object", where);
  return value;
}

Result<const json*> json_array_field(const json& object, const char* key, const std::string& where) {
  FIVEFOLD_ASSIGN(const json* value, field(object, key, where));
  if (!value->is_array()) return mistyped(key, "a list", where);
  return value;
}

Result<std::string> json_string_field(const json& object, const char* key, const std::string& where) {
  FIVEFOLD_ASSIGN(const json* value, field(object, key, where));
  if (!value->is_string()) return mistyped(key, "text", where);
  return value->get<std::string>();
}

Result<int64_t> json_size_field(const json& object, const char* key, const std::string& where) {
  FIVEFOLD_ASSIGN(const json* value, field(object, key, where));
  if (!is_size(*value)) return mistyped(key, "a whole number from 0 to 2^63 - 1", where);
  return value->get<int64_t>();
}

Result<uint64_t> json_hash_field(const json& object, const char* key, const std::string& where) {
  FIVEFOLD_ASSIGN(const std::string text, json_string_field(object, key, where));
  const auto hash = parse_hash(text);
  if (!hash) return mistyped(key, "'xxh3:' and 16 hexadecimal digits", where);
  return *hash;
}

Result<std::pair<int64_t, int64_t>> json_range_field(const json& object, const char* key, const std::string& where) {
  FIVEFOLD_ASSIGN(const json* value, json_array_field(object, key, where));
  if (value->size() != 2 || !is_size((*value)[0]) || !is_size((*value)[1]))
    return mistyped(key, "two whole numbers from 0 to 2^63 - 1", where);
  const std::pair range((*value)[0].get<int64_t>(), (*value)[1].get<int64_t>());
  if (range.first > range.second)
    return Error{where, "'" + std::string(key) + "' ends before it begins: " + value->dump(), ""};
  return range;
}

Result<std::vector<int64_t>> json_shape_field(const json& object, const char* key, const std::string& where) {
  FIVEFOLD_ASSIGN(const json* value, json_array_field(object, key, where));
  std::vector<int64_t> shape;
  for (const json& dim : *value) {
    if (!is_size(dim)) return mistyped(key, "a list of whole numbers from 0 to 2^63 - 1", where);
    shape.push_back(dim.get<int64_t>());
  }
  return shape;
}

}  // namespace fivefold
