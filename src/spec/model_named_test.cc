#include "spec/model_named.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace fivefold {
namespace {

class ConfigsVariable : public testing::Test {
 protected:
  void TearDown() override { unsetenv("FIVEFOLD_CONFIGS"); }
};
using NamedModels = ConfigsVariable;

TEST_F(NamedModels, AreFoundInTheSourceTree) {
  const auto path = find_named_model("llama-3.1-8b");
  ASSERT_TRUE(path.ok()) << path.error().message();
  EXPECT_EQ(*path, std::filesystem::path(FIVEFOLD_SOURCE_DIR) / "configs" / "models" / "llama-3.1-8b.json");
}

TEST_F(NamedModels, UnknownNameOffersTheNearest) {
  const auto path = find_named_model("llama-3.1-8");
  ASSERT_FALSE(path.ok());
  EXPECT_EQ(path.error().message(), "models: unknown name \"llama-3.1-8\" (did you mean llama-3.1-8b?)");
  EXPECT_FALSE(find_named_model("../models/llama-3.1-8b").ok());  // names, not paths
}

TEST_F(NamedModels, EnvironmentComesFirst) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "own-configs";
  std::filesystem::create_directories(folder / "models");
  std::ofstream(folder / "models" / "mine.json") << "{}";
  setenv("FIVEFOLD_CONFIGS", folder.c_str(), 1);
  EXPECT_EQ(list_named_models(), std::vector<std::string>{"mine"});
  EXPECT_EQ(*find_named_model("mine"), folder / "models" / "mine.json");
  setenv("FIVEFOLD_CONFIGS", "/nowhere", 1);
  EXPECT_EQ(find_named_model("mine").error().where, "FIVEFOLD_CONFIGS");
  EXPECT_TRUE(list_named_models().empty());
}

TEST_F(NamedModels, EachFileSaysWhereItsNumbersComeFrom) {
  for (const std::string& name : list_named_models()) {
    std::ifstream file(*find_named_model(name));
    const auto config = nlohmann::json::parse(file, nullptr, false);
    ASSERT_TRUE(config.is_object()) << name;
    EXPECT_TRUE(config.contains("_source") && config["_source"].is_string()) << name;
  }
}

}  // namespace
}  // namespace fivefold
