#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/tokenizer.h"

namespace fivefold {
namespace {

const std::string kFolder = FIVEFOLD_SOURCE_DIR "/src/data/testdata/";

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// testdata/make_fixtures.py trained these with the Hub's own library and wrote down what it makes of each text.
class HubTokenizerStyle : public testing::TestWithParam<const char*> {};

TEST_P(HubTokenizerStyle, AgreesWithTheHubLibrary) {
  const auto tokenizer = load_tokenizer(kFolder + GetParam() + ".json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  const nlohmann::json rows = read_json(kFolder + GetParam() + ".expected.json");
  ASSERT_GE(rows.size(), 40U);
  for (const auto& row : rows) {
    const auto text = row.at("text").get<std::string>();
    const auto special = row.at("ids_special").get<std::vector<int32_t>>();
    EXPECT_EQ((*tokenizer)->encode(text), row.at("ids").get<std::vector<int32_t>>()) << row.at("text");
    EXPECT_EQ((*tokenizer)->encode(text, Specials::kAdd), special) << row.at("text");
    EXPECT_EQ((*tokenizer)->decode(special), row.at("decoded").get<std::string>()) << row.at("text");
    EXPECT_EQ((*tokenizer)->decode(special, Specials::kAdd), row.at("decoded_special").get<std::string>())
        << row.at("text");
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, HubTokenizerStyle,
                         testing::Values("gpt2", "gpt2_prefix", "llama3", "qwen2", "llama2", "metaspace",
                                         "metaspace_split"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fivefold
