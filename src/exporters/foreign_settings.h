// ForeignSettings: what a file or a command line of another framework sets: names with values, each with its place. It
// knows nothing of what a name means; an importer asks for the names it understands, which marks them, and what nobody
// asked for can be listed at the end. Nested tables have dotted names ("fsdp_config.fsdp_version"); flags of a command
// line are named without their dashes, and `_` and `-` are the same. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fivefold {

struct ForeignSetting {
  std::string name;      // as written
  nlohmann::json value;  // true for a flag without a value; text of a command line is a string
  std::string where;     // "run.sh:12"
  std::string key = {};  // what it is asked for as; empty: its name

  const std::string& lookup_name() const { return key.empty() ? name : key; }
};

// A value for people, on one line and cut when it is long.
std::string foreign_value_text(const nlohmann::json& value);

class ForeignSettings {
 public:
  // A name that is there already gets the new value, as in argparse.
  void add(std::string name, nlohmann::json value, std::string where);
  // The same under another framework's name for it; messages keep the name as written.
  void add_as(std::string_view key, const ForeignSetting& setting, nlohmann::json value);
  // Settings of `other` on top of these.
  void add_all(const ForeignSettings& other);
  // Those of them that nobody has asked for.
  void add_unread(const ForeignSettings& other);

  // Whether it is set to more than null; marks nothing.
  bool has(std::string_view name) const;
  // Marks it as understood. Nothing when it is not there or null.
  const ForeignSetting* find(std::string_view name);
  // The first of several spellings of one setting; all of them are marked.
  const ForeignSetting* find_first(std::initializer_list<std::string_view> names);

  // Typed access. A value of the wrong kind is an error that errors() keeps, and counts as absent. "auto" and "" are
  // absent too.
  std::optional<int64_t> integer(std::string_view name, int64_t min = 0, int64_t max = int64_t{1} << 40);
  std::optional<double> number(std::string_view name, double min = 0.0, double max = 1e18);
  std::optional<std::string> text(std::string_view name);
  std::optional<bool> boolean(std::string_view name);  // also "yes", "1"
  bool flag(std::string_view name) { return boolean(name).value_or(false); }
  std::vector<std::string> texts(std::string_view name);  // a list, or one text

  // An error about a setting that is there, or, when it is not, about its name.
  void fail(std::string_view name, std::string problem, std::string hint = "");
  std::string where(std::string_view name) const;  // empty: not set
  const std::vector<Error>& errors() const { return errors_; }
  // Set and never asked for, in the order of the file.
  std::vector<const ForeignSetting*> unread() const;
  bool empty() const { return settings_.empty(); }
  const std::vector<ForeignSetting>& all() const { return settings_; }

 private:
  const ForeignSetting* lookup(std::string_view name) const;
  void store(ForeignSetting setting);

  std::vector<ForeignSetting> settings_;
  std::map<std::string, size_t> index_;  // by name with `-` for `_`
  std::map<std::string, bool> asked_;
  std::vector<Error> errors_;
};

// Readers of files. Errors ("FILE:LINE"): text that is not of the format, nested too deeply, too large.
Result<ForeignSettings> read_json_settings(std::string_view text, const std::string& where);
Result<ForeignSettings> read_toml_settings(std::string_view text, const std::string& where);
Result<ForeignSettings> read_yaml_settings(std::string_view text, const std::string& where);
// Words of a command line after the program: "--name value value", "--name=value", "--flag".
ForeignSettings read_flag_settings(const std::vector<std::string>& words, const std::vector<std::string>& places,
                                   std::vector<std::string>& positional);

}  // namespace fivefold
