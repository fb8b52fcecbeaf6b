#include "engine/generate/low_rank_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/weights.h"
#include "support/reference_run.h"

namespace fivefold {
namespace {

using testing::oracle_folder;

std::vector<float> values(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo& info = *file.find(name);
  std::vector<float> result(file.bytes(info).size() / sizeof(float));
  std::memcpy(result.data(), file.bytes(info).data(), result.size() * sizeof(float));
  return result;
}

// Case 10: an adapter of rank 4, alpha 8, on the seven projections of case 01, and the merged weights of another
// library.
class LowRankSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path base = oracle_folder() / "01_llama_gqa_untied";
    const std::filesystem::path adapted = oracle_folder() / "10_lora_all_linear_r4";
    if (!std::filesystem::exists(adapted)) GTEST_SKIP() << "no reference cases at " << oracle_folder();
    install_counting_allocator();
    inventory_ = build_inventory(read_model_config(base).value());
    base_ = open_parameters(base, inventory_).value();
    merged_ = open_parameters(adapted / "merged", inventory_).value();
    std::filesystem::path folder = adapted;
    if (!std::filesystem::exists(folder / "adapter_model.safetensors")) folder /= "adapter";
    const SafetensorsFile file = SafetensorsFile::open(folder / "adapter_model.safetensors").value();
    const std::string prefix = "base_model.model.", a = ".lora_A.weight";
    for (const TensorInfo& tensor : file.tensors()) {
      if (!tensor.name.ends_with(a)) continue;
      const std::string module = tensor.name.substr(0, tensor.name.size() - a.size());
      updates_.push_back({.weight = module.substr(prefix.size()) + ".weight",
                          .rank = 4,
                          .scale = 2,
                          .a = values(file, tensor.name),
                          .b = values(file, module + ".lora_B.weight")});
    }
  }

  Inventory inventory_;
  std::unique_ptr<ParameterSource> base_, merged_;
  std::vector<LowRankUpdate> updates_;
};

TEST_F(LowRankSourceTest, GivesTheMergedWeights) {
  ASSERT_EQ(updates_.size(), 14u) << "seven projections of two layers";
  const auto source = add_updates(std::move(base_), updates_, inventory_).value();
  for (const Unit& unit : inventory_.units) {
    for (const ParameterEntry& entry : unit.parameters) {
      std::vector<float> own(static_cast<size_t>(entry.whole_numel())), right(own.size());
      ASSERT_TRUE(source->read(entry, own).ok());
      ASSERT_TRUE(merged_->read(entry, right).ok());
      // A sum of four products and the weight: 5 roundings of 2^-24 of the magnitudes, which are about those of the
      // sum.
      EXPECT_LT(testing::relative_difference(own, right), 5 * 0x1p-24) << entry.name;
    }
  }
}

// By hand in fp64: rows of W + scale B A, at their magnitudes.
TEST_F(LowRankSourceTest, ScalesRowsToTheMagnitudesOfDora) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(0.5f, 2.0f);
  for (LowRankUpdate& update : updates_) {
    update.magnitude.resize(update.b.size() / static_cast<size_t>(update.rank));
    for (float& value : update.magnitude) value = uniform(random);
  }
  const auto source = add_updates(std::move(base_), updates_, inventory_).value();
  for (const Unit& unit : inventory_.units) {
    for (const ParameterEntry& entry : unit.parameters) {
      std::vector<float> own(static_cast<size_t>(entry.whole_numel())), right(own.size());
      ASSERT_TRUE(source->read(entry, own).ok());
      ASSERT_TRUE(merged_->read(entry, right).ok());
      for (const HubPart& part : entry.parts) {
        const auto update = std::ranges::find(updates_, part.name, &LowRankUpdate::weight);
        if (update == updates_.end()) continue;
        const auto cols = static_cast<size_t>(entry.whole_cols());
        for (size_t row = 0; row < static_cast<size_t>(part.rows); ++row) {
          const auto begin = right.begin() + static_cast<std::ptrdiff_t>((part.row_begin + row) * cols);
          double squares = 0;
          for (size_t c = 0; c < cols; ++c) squares += static_cast<double>(begin[c]) * begin[c];
          for (size_t c = 0; c < cols; ++c)
            begin[c] =
                static_cast<float>(begin[c] * (static_cast<double>(update->magnitude[row]) / std::sqrt(squares)));
        }
      }
      EXPECT_LT(testing::relative_difference(own, right), 10 * 0x1p-24) << entry.name;
    }
  }
}

TEST_F(LowRankSourceTest, RefusesAnotherBase) {
  std::vector<LowRankUpdate> other = updates_;
  other[0].weight = "model.layers.7.mlp.down_proj.weight";
  EXPECT_EQ(add_updates(std::move(base_), other, inventory_).error().where, other[0].weight);
  other = updates_;
  other[0].b.resize(other[0].b.size() - 4);
  EXPECT_EQ(add_updates(std::move(merged_), other, inventory_).error().where, other[0].weight);
}

}  // namespace
}  // namespace fivefold
