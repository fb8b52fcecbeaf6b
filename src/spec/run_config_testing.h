// What the tests of configurations share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "spec/run_config_io.h"

namespace fivefold::test {

inline RunConfig parsed(std::string_view toml) {
  const LoadedConfig loaded = parse_config(toml, "run.toml");
  for (const Error& error : loaded.errors) ADD_FAILURE() << error.message();
  return loaded.config;
}

// Messages of a source, one per line.
inline std::string errors_of(const LoadedConfig& loaded) {
  std::vector<std::string> messages;
  for (const Error& error : loaded.errors) messages.push_back(error.message());
  return join(messages, "\n");
}

inline std::string set_error(const std::string& setting) { return errors_of(load_config({.set = {setting}})); }
inline RunConfig with(const std::string& setting) {
  const LoadedConfig loaded = load_config({.set = {setting}});
  EXPECT_EQ(errors_of(loaded), "");
  return loaded.config;
}

}  // namespace fivefold::test
