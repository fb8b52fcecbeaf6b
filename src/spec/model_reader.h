// ModelReader: typed, checked access to the keys of one JSON object of a config.json. The first problem is kept as an
// Error and every later read returns its fallback, so a parser reads all its keys in a row and looks once at the end.
// Internal to the parsers of spec/model*.cc. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace fivefold {

// Sizes accepted by `integer`. The upper bounds of a config.json lie far above any published model and far below what
// overflows a parameter count.
struct IntegerRange {
  int64_t min = 1;
  int64_t max = int64_t{1} << 24;
};

class ModelReader {
 public:
  // `prefix` goes before keys in errors ("text_config."). REQUIRES: `object` is a JSON object that outlives the reader.
  ModelReader(const nlohmann::json& object, std::string where, std::string prefix = "");

  // Present and not null: absent and null mean the same in config.json.
  bool has(const std::string& key) const;
  // Present as null, for the few keys where that differs from absent.
  bool has_null(const std::string& key) const;
  // A required whole number. Errors: missing, not a whole number, outside `range`.
  int64_t integer(const std::string& key, IntegerRange range = {});
  // The same with a fallback for absent or null.
  int64_t integer_or(const std::string& key, int64_t fallback, IntegerRange range = {});
  // A finite number in [min, max].
  double number_or(const std::string& key, double fallback, double min, double max);
  double number(const std::string& key, double min, double max);
  bool boolean_or(const std::string& key, bool fallback);
  std::string text_or(const std::string& key, const std::string& fallback);
  std::vector<std::string> texts_or_empty(const std::string& key);
  std::vector<int64_t> integers_or_empty(const std::string& key, IntegerRange range);
  // The object under `key`, reporting problems to this reader. REQUIRES: has(key). Errors: not an object (then empty).
  ModelReader object(const std::string& key);

  // Records a problem unless there is one already.
  void fail(const std::string& key, std::string problem, std::string hint = "");
  // fail() with "not supported" unless the key is absent or has the value that changes nothing.
  void require_false(const std::string& key, const std::string& why);

  bool ok() const { return !error_->has_value(); }
  const Error& error() const { return **error_; }

 private:
  const nlohmann::json* find(const std::string& key) const;
  void wrong_type(const std::string& key, const char* expected, const nlohmann::json& found);
  int64_t checked_integer(const std::string& key, const nlohmann::json& value, IntegerRange range);
  double checked_number(const std::string& key, const nlohmann::json& value, double min, double max);

  const nlohmann::json* object_;
  std::string where_, prefix_;
  std::shared_ptr<std::optional<Error>> error_;  // shared with the readers of nested objects
};

}  // namespace fivefold
