#include "store/hub_folder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "store/hub_writer.h"
#include "store/test_files.h"

namespace fivefold {
namespace {

// Three tensors of 8, 12 and 4 bytes, filled with 'a', 'b' and 'c'.
const std::vector<TensorDeclaration> kTensors = {
    {"x", DType::kFloat32, {2}}, {"y", DType::kBFloat16, {2, 3}}, {"z", DType::kUint8, {4}}};

void write_model(const std::filesystem::path& folder, int64_t max_shard_bytes) {
  HubWriter writer(folder, kTensors, {.max_shard_bytes = max_shard_bytes});
  writer.write("x", bytes_of("aaaaaaaa"));
  writer.write("y", bytes_of("bbbbbb"));
  writer.write("y", bytes_of("bbbbbb"));
  writer.write("z", bytes_of("cccc"));
  writer.finish();
}

void expect_model(const std::filesystem::path& folder) {
  const auto hub = HubFolder::open(folder);
  ASSERT_TRUE(hub.ok()) << hub.error().message();
  EXPECT_EQ(hub->names(), (std::vector<std::string>{"x", "y", "z"}));
  EXPECT_EQ(text_of_bytes(hub->tensor("x")->bytes), "aaaaaaaa");
  EXPECT_EQ(text_of_bytes(hub->tensor("y")->bytes), "bbbbbbbbbbbb");
  EXPECT_EQ(hub->tensor("y")->info.dtype, DType::kBFloat16);
  EXPECT_EQ(hub->tensor("y")->info.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(text_of_bytes(hub->tensor("z")->bytes), "cccc");
}

TEST(HubFolder, OneFileUpToTheLimit) {
  TempFolder folder;
  write_model(folder.path(), 24);  // 8 + 12 + 4
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"model.safetensors"}));
  expect_model(folder.path());
}

// One byte less and the last tensor opens a second shard; the index counts 24 bytes.
TEST(HubFolder, ShardsAndAnIndexBeyondTheLimit) {
  TempFolder folder;
  write_model(folder.path(), 23);
  EXPECT_EQ(names_in(folder.path()),
            (std::set<std::string>{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                   "model.safetensors.index.json"}));
  const auto index = nlohmann::json::parse(read_file(folder / kHubIndexFile));
  EXPECT_EQ(index["metadata"]["total_size"], 24);
  EXPECT_EQ(index["weight_map"]["y"], "model-00001-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["z"], "model-00002-of-00002.safetensors");
  expect_model(folder.path());
}

TEST(HubFolder, ATensorBeyondTheLimitHasItsOwnShard) {
  TempFolder folder;
  write_model(folder.path(), 5);
  EXPECT_EQ(names_in(folder.path()).size(), 4u);  // three shards and the index
  expect_model(folder.path());
}

TEST(HubFolder, ANewExportReplacesTheOtherFormWhole) {
  TempFolder folder;
  write_file(folder / "config.json", "{}");
  for (const int64_t limit : {5, 23, 100, 23}) {
    write_model(folder.path(), limit);
    expect_model(folder.path());
  }
  EXPECT_EQ(names_in(folder.path()),
            (std::set<std::string>{"config.json", "model-00001-of-00002.safetensors",
                                   "model-00002-of-00002.safetensors", "model.safetensors.index.json"}));
}

TEST(HubFolder, AnUnfinishedExportLeavesTheOldModel) {
  TempFolder folder;
  write_model(folder.path(), 100);
  {
    HubWriter writer(folder.path(), {{"other", DType::kUint8, {3}}});
    writer.write("other", bytes_of("q"));
  }
  expect_model(folder.path());
}

TEST(HubFolder, AnUnknownTensorHasANearName) {
  TempFolder folder;
  HubWriter writer(folder.path(), {{"model.norm.weight", DType::kUint8, {1}}});
  writer.write("model.norm.weight", bytes_of("q"));
  writer.finish();
  const auto hub = HubFolder::open(folder.path());
  ASSERT_TRUE(hub.ok());
  EXPECT_TRUE(hub->contains("model.norm.weight"));
  EXPECT_FALSE(hub->contains("model.norm.wieght"));
  const auto tensor = hub->tensor("model.norm.wieght");
  ASSERT_FALSE(tensor.ok());
  EXPECT_EQ(tensor.error().where, folder.path().string() + " (model.norm.wieght)");
  EXPECT_EQ(tensor.error().problem, "no such tensor");
  EXPECT_EQ(tensor.error().hint, "did you mean model.norm.weight?");
}

// Both forms were written by the reference library from one model.
TEST(HubFolder, ReferenceShardsEqualTheReferenceFile) {
  const std::filesystem::path oracle = std::filesystem::path(FIVEFOLD_SHARED) / "oracles/08_llama_seq128";
  if (!std::filesystem::exists(oracle)) GTEST_SKIP() << oracle << " is not there";
  const auto whole = HubFolder::open(oracle);
  const auto sharded = HubFolder::open(oracle / "sharded");
  ASSERT_TRUE(whole.ok()) << whole.error().message();
  ASSERT_TRUE(sharded.ok()) << sharded.error().message();
  ASSERT_EQ(whole->names(), sharded->names());
  int64_t numel = 0;
  for (const std::string& name : whole->names()) {
    const auto a = whole->tensor(name);
    const auto b = sharded->tensor(name);
    EXPECT_EQ(a->info.dtype, b->info.dtype);
    EXPECT_EQ(a->info.shape, b->info.shape);
    EXPECT_EQ(text_of_bytes(a->bytes), text_of_bytes(b->bytes)) << name;
    numel += static_cast<int64_t>(a->bytes.size()) / 4;
  }
  EXPECT_EQ(numel, 26784);  // the index's total_parameters
}

}  // namespace
}  // namespace fivefold
