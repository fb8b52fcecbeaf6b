// What the tests of validation share: configurations from settings, and what the rules say of them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spec/run_config_io.h"
#include "spec/validate.h"
#include "spec/validate_test_models.h"

namespace fivefold::test {

using Settings = std::vector<std::string>;
using Messages = std::vector<std::string>;

inline RunConfig config(const Settings& settings) {
  const LoadedConfig loaded = load_config({.set = settings});
  for (const Error& error : loaded.errors) ADD_FAILURE() << error.message();
  return loaded.config;
}
inline Messages messages(const std::vector<Error>& errors) {
  Messages texts;
  for (const Error& error : errors) texts.push_back(error.message());
  return texts;
}
inline Messages layout(const ModelSpec& model, const Settings& settings) {
  return messages(validate_layout(model, config(settings)));
}
inline Messages engine(const ModelSpec& model, const Settings& settings) {
  return messages(validate_engine(model, config(settings)));
}
inline Messages notes(const ModelSpec& model, const Settings& settings) {
  return messages(layout_notes(model, config(settings)));
}

inline ModelSpec with_mixer(MixerKind kind) {
  ModelSpec model = dense_model();
  for (LayerSpec& layer : model.layers) layer.mixer.kind = kind;
  return model;
}

struct WrongLayout {
  ModelSpec model;
  Settings settings;
  Messages expected;
};

inline void expect_layout_errors(const std::vector<WrongLayout>& cases) {
  for (const WrongLayout& wrong : cases)
    EXPECT_EQ(layout(wrong.model, wrong.settings), wrong.expected) << ::testing::PrintToString(wrong.settings);
}

// A setting of dense_model() that the engine refuses.
struct WrongSetting {
  const char* setting;
  const char* message;
};

}  // namespace fivefold::test
