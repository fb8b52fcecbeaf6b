// HardwareReader: typed, checked access to one table of a hardware file. The first problem is kept; keys that nobody
// asked for are found at the end. Internal to spec/hardware*.cc. Not thread-safe.
#pragma once

#include <toml++/toml.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "spec/hardware.h"

namespace fivefold {

// The words of files for an enum, in both directions.
const std::vector<std::pair<std::string_view, Provenance>>& provenance_names();
const std::vector<std::pair<std::string_view, OperationKind>>& operation_names();
const std::vector<std::pair<std::string_view, Pass>>& pass_names();
const std::vector<std::pair<std::string_view, StreamKind>>& stream_names();

class HardwareReader {
 public:
  // REQUIRES: `table` outlives the reader.
  HardwareReader(const toml::table& table, std::string where, std::string prefix = "");

  bool has(const std::string& key);
  std::string text(const std::string& key, const std::string& fallback);
  // A positive whole number.
  int64_t count(const std::string& key, int64_t fallback, int64_t most = int64_t{1} << 50);
  int64_t required_count(const std::string& key);
  // A positive number up to 10^18, which as bytes still fits int64_t; `required_number` must be there.
  double required_number(const std::string& key);
  double number(const std::string& key, double fallback);
  // { value, kind, source }. Absent: an unknown Figure.
  Figure figure(const std::string& key);
  Figure required_figure(const std::string& key);
  // An enumerator by its to_string name. Errors: unknown, with the nearest.
  template <typename Enum>
  Enum name(const std::string& key, const std::vector<std::pair<std::string_view, Enum>>& known);
  // A sub-table, empty when absent.
  HardwareReader table(const std::string& key);
  // The tables of an array of tables, empty when absent.
  std::vector<HardwareReader> tables(const std::string& key);

  void fail(const std::string& key, std::string problem, std::string hint = "");
  // Errors: a key that was never asked for, with the nearest that was.
  void finish();
  bool ok() const { return !error_->has_value(); }
  const Error& error() const { return **error_; }

 private:
  const toml::node* find(const std::string& key);
  double checked_number(const std::string& key, const toml::node& node);

  const toml::table* table_;
  std::string where_, prefix_;
  std::vector<std::string> asked_;
  std::shared_ptr<std::optional<Error>> error_;
};

template <typename Enum>
Enum HardwareReader::name(const std::string& key, const std::vector<std::pair<std::string_view, Enum>>& known) {
  const std::string found = text(key, "");
  std::vector<std::string> names;
  for (const auto& [label, value] : known) {
    if (found == label) return value;
    names.emplace_back(label);
  }
  if (found.empty())
    fail(key, "missing", "known: " + join(names, ", "));
  else
    fail(key, "unknown value \"" + found + "\"", name_hint(found, names));
  return known.front().second;
}

}  // namespace fivefold
