// A RunConfig from TOML and from KEY=VALUE settings, and back. All problems of all sources are reported at once, each
// with its place and what would be right. Whether the values go together is validate.h's business.
// Thread-safe: no state.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "spec/run_config.h"

namespace fivefold {

// Where a configuration comes from, weakest first; what none of them sets keeps its default.
struct ConfigSources {
  std::filesystem::path file = {};      // TOML; empty: none
  std::vector<std::string> set = {};    // "KEY=VALUE" as given to --set
  std::vector<std::string> flags = {};  // "KEY=VALUE" that other flags of the command stand for
};

enum class KeySource : uint8_t { kFile, kSetting, kFlag };

struct LoadedConfig {
  RunConfig config;           // complete only if there are no errors
  std::vector<Error> errors;  // in the order of the sources
  // Keys that a source has set, "parallel.tp", each with the strongest source that did.
  std::map<std::string, KeySource> keys = {};
};

// Applies the sources on top of `base`. run.steps and run.tokens, like model.name and model.config, answer one question
// in two ways: a source that sets one of them takes back what weaker sources said with the other.
// Errors: no such file, not TOML (with the line), unknown section or key (with the nearest), a value of the wrong type
// or out of range, a setting that is not KEY=VALUE.
LoadedConfig load_config(const ConfigSources& sources, const RunConfig& base = {});

// As load_config of a file with this text; `where` is what its errors call it.
LoadedConfig parse_config(std::string_view toml, const std::string& where, const RunConfig& base = {});

// The complete file, defaults included. parse_config gives back an equal RunConfig.
std::string to_toml(const RunConfig& config);

// KEY=VALUE of each key whose value in `to` is another than in `from`, as --set takes it: text without quotes.
std::vector<std::string> config_changes(const RunConfig& from, const RunConfig& to);

// docs/configuration.md: every key with its type, default and meaning.
std::string config_reference();

}  // namespace fivefold
