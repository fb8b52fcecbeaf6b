// The table of keys of the configuration file: section, name, meaning, range, and where RunConfig stores the value.
// Reading,
// `--set`, writing, unknown-key hints and docs/configuration.md all walk this one table. Immutable, thread-safe.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "spec/run_config.h"

namespace fivefold {

// An enumeration's value, as its index in the names it has in TOML.
struct EnumRef {
  uint8_t* index;
  std::span<const std::string_view> names;
};
// Bytes: an integer, or text such as "600MiB".
struct SizeRef {
  int64_t* bytes;
};
// A large count: an integer, or text such as "300B" (K, M, B, T: powers of 1000).
struct CountRef {
  int64_t* count;
};
// Layers per stage: a name of kStageCutNames, or a list of numbers.
struct StagesRef {
  StageLayers* stages;
};
using StringList = std::vector<std::string>;
using NumberPair = std::array<double, 2>;
using OptionalDType = std::optional<DType>;
// Where a setting lives in a RunConfig; the alternative is the key's type.
using FieldRef = std::variant<bool*, int*, int64_t*, double*, std::string*, StringList*, NumberPair*, OptionalDType*,
                              EnumRef, SizeRef, CountRef, StagesRef>;

// Bounds of a number, both included unless open. For a pair, of each of the two.
struct Range {
  double min = 0;
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false, open_max = false;

  bool contains(double x) const { return (open_min ? x > min : x >= min) && (open_max ? x < max : x <= max); }
};

struct ConfigKey {
  std::string_view section, name;
  FieldRef (*field)(RunConfig&);
  Range range;  // of numbers; unused otherwise
  std::string_view doc;

  std::string path() const { return std::string(section) + "." + std::string(name); }
};

struct ConfigSection {
  std::string_view name, doc;
};

// In the order in which the file is written: sections together, in the order of config_sections().
std::span<const ConfigKey> config_keys();
std::span<const ConfigSection> config_sections();
// Nothing when there is no such key.
const ConfigKey* find_config_key(std::string_view path);

// What the key takes, for errors and the reference: "an integer from 0 to 3", "one of none, full, selective".
std::string expected_value(const ConfigKey& key);
// Text as a TOML string, in double quotes.
std::string toml_string(std::string_view text);
// The setting as TOML.
std::string setting_text(const FieldRef& field);
// Names a precision key takes beside "auto".
std::span<const DType> precision_dtypes();
// "did you mean parallel.tp?": the same name in the one other section that has it, else the nearest of the section,
// else of all. `section` is empty for a key outside any section.
std::string unknown_key_hint(std::string_view section, std::string_view name);
std::string unknown_section_hint(std::string_view name);

}  // namespace fivefold
