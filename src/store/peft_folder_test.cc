#include "store/peft_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "store/peft_writer.h"
#include "store/test_files.h"

namespace fivefold {
namespace {

using nlohmann::json;

const std::filesystem::path kOracles = [] {
  const char* shared = std::getenv("FIVEFOLD_SHARED");
  return std::filesystem::path(shared != nullptr ? shared : FIVEFOLD_SHARED) / "oracles";
}();

constexpr const char* kA = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
constexpr const char* kB = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";
constexpr const char* kMagnitude = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector";

// An adapter of one module [3, 2] with rank 1, put together by hand: A [1, 2], B [3, 1], and DoRA's magnitude [3].
struct HandMade {
  json config = {{"peft_type", "LORA"}, {"r", 1}, {"lora_alpha", 2}, {"target_modules", {"q_proj"}}};
  json header = {{kA, {{"dtype", "F32"}, {"shape", {1, 2}}, {"data_offsets", {0, 8}}}},
                 {kB, {{"dtype", "F32"}, {"shape", {3, 1}}, {"data_offsets", {8, 20}}}}};
  size_t bytes = 20;

  void add(const std::string& name, const std::vector<int64_t>& shape, size_t size) {
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {bytes, bytes + size}}};
    bytes += size;
  }
  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    write_file(folder / kPeftConfigFile, config.dump());
    write_file(folder / kPeftModelFile, raw_safetensors(header.dump(), bytes));
  }
};

TEST(PeftFolder, ReadsTheAdapterOfSevenProjections) {
  const auto folder = kOracles / "10_lora_all_linear_r4";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const auto adapter = PeftFolder::open(folder);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message();
  EXPECT_EQ(adapter->config().rank, 4);
  EXPECT_EQ(adapter->config().scale(), 2.0);
  EXPECT_EQ(adapter->config().base_model, "../01_llama_gqa_untied");
  EXPECT_EQ(adapter->modules().size(), 14u);  // 7 in each of 2 layers
  EXPECT_EQ(adapter->names().size(), 28u);
  int64_t elements = 0;
  for (const PeftModule& module : adapter->modules()) elements += 4 * (module.in + module.out);
  EXPECT_EQ(elements, 6144);  // trainable_parameters of expected.json
  const auto b = adapter->tensor("base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight");
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->info.shape, (std::vector<int64_t>{24, 4}));  // 2 heads of 12
  EXPECT_EQ(b->bytes.size(), 24u * 4 * 4);
}

TEST(PeftFolder, ReadsTheAdapterOfQueriesAndValues) {
  const auto folder = kOracles / "smollm2" / "adapter_qv";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const auto adapter = PeftFolder::open(folder);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message();
  EXPECT_EQ(adapter->modules().size(), 60u);  // 2 in each of 30 layers
  EXPECT_EQ(adapter->config().targets, (std::vector<std::string>{"q_proj", "v_proj"}));
}

// What is read is written again: the same tensors byte for byte, and a configuration that says the same.
TEST(PeftFolder, IsWrittenAsItWasRead) {
  const auto folder = kOracles / "10_lora_all_linear_r4";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const auto adapter = PeftFolder::open(folder);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message();
  TempFolder written;
  std::vector<TensorDeclaration> tensors;
  for (const std::string& name : adapter->names()) tensors.push_back(adapter->tensor(name)->info);
  PeftWriter writer(written / "adapter", adapter->config(), tensors, {{"base", "nf4"}});
  for (const std::string& name : adapter->names()) writer.write(name, adapter->tensor(name)->bytes);
  writer.finish();
  EXPECT_EQ(names_in(written / "adapter"), (std::set<std::string>{"adapter_config.json", "adapter_model.safetensors"}));

  const auto again = PeftFolder::open(written / "adapter");
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(again->config(), adapter->config());
  EXPECT_EQ(again->names(), adapter->names());
  EXPECT_EQ(again->metadata().at("base"), "nf4");
  for (const std::string& name : adapter->names())
    EXPECT_EQ(text_of_bytes(again->tensor(name)->bytes), text_of_bytes(adapter->tensor(name)->bytes)) << name;
}

TEST(PeftFolder, ReadsDora) {
  TempFolder folder;
  HandMade made;
  made.config["use_dora"] = true;
  made.add(kMagnitude, {3}, 12);
  made.write(folder.path());
  const auto adapter = PeftFolder::open(folder.path());
  ASSERT_TRUE(adapter.ok()) << adapter.error().message();
  ASSERT_EQ(adapter->modules().size(), 1u);
  EXPECT_EQ(adapter->modules()[0].name, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(adapter->modules()[0].out, 3);
  EXPECT_EQ(adapter->modules()[0].in, 2);
  EXPECT_TRUE(adapter->contains(kMagnitude));
}

TEST(PeftFolder, NamesOfTensorsAreTakenApart) {
  EXPECT_EQ(peft_tensor_name("model.x", PeftTensor::kA), "base_model.model.model.x.lora_A.weight");
  const auto name = parse_peft_tensor_name(kMagnitude);
  ASSERT_TRUE(name);
  EXPECT_EQ(name->module, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(name->tensor, PeftTensor::kMagnitude);
  for (const char* other : {"", "base_model.model.", "base_model.model..lora_A.weight", "x.lora_A.weight",
                            "base_model.model.x.lora_A.default.weight", "base_model.model.x.weight"})
    EXPECT_FALSE(parse_peft_tensor_name(other).has_value()) << other;
}

struct Row {
  std::string name;
  std::function<void(HandMade&)> damage;
  std::string where;  // after the file's name
  std::string problem;
  std::string hint;
};

TEST(PeftFolder, RefusesTensorsThatAreNotTheAdapter) {
  const std::string names = "names are base_model.model.MODULE.lora_A.weight, .lora_B.weight or .lora_magnitude_vector";
  const auto at = [](const char* name) { return " (" + std::string(name) + ")"; };
  const std::vector<Row> rows = {
      {"no B", [](HandMade& m) { m.header.erase(kB), m.bytes = 8; }, at(kB), "is missing", "the file is incomplete"},
      {"no A", [](HandMade& m) { m.header.erase(kA), m.header[kB]["data_offsets"] = {0, 12}, m.bytes = 12; }, at(kA),
       "is missing", "the file is incomplete"},
      {"no magnitude", [](HandMade& m) { m.config["use_dora"] = true; }, at(kMagnitude), "is missing",
       "use_dora asks for one in each module"},
      {"a magnitude too much", [](HandMade& m) { m.add(kMagnitude, {3}, 12); }, at(kMagnitude), "is a tensor of DoRA",
       "use_dora must be true to use it"},
      {"a magnitude for each input", [](HandMade& m) { m.config["use_dora"] = true, m.add(kMagnitude, {2}, 8); },
       at(kMagnitude), "has shape [2]", "lora_B says 3 outputs"},
      {"a whole module", [](HandMade& m) { m.add("base_model.model.lm_head.weight", {1}, 4); },
       at("base_model.model.lm_head.weight"), "is not a tensor of a LoRA adapter", names},
      {"the name of an adapter",
       [](HandMade& m) { m.add("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight", {1}, 4); },
       at("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"),
       "is not a tensor of a LoRA adapter", names},
      {"an embedding", [](HandMade& m) { m.add("base_model.model.model.embed_tokens.lora_embedding_A", {1}, 4); },
       at("base_model.model.model.embed_tokens.lora_embedding_A"), "is an adapter of an embedding",
       "adapters of linear modules are read"},
      {"another rank", [](HandMade& m) { m.config["r"] = 2; }, at(kA), "has shape [1, 2]",
       "with r = 2 it is [2, inputs of the module]"},
      {"B the other way round", [](HandMade& m) { m.header[kB]["shape"] = {1, 3}; }, at(kB), "has shape [1, 3]",
       "with r = 1 it is [outputs of the module, 1]"},
      {"A as a vector", [](HandMade& m) { m.header[kA]["shape"] = {2}; }, at(kA), "has shape [2]",
       "with r = 1 it is [1, inputs of the module]"},
      {"whole numbers", [](HandMade& m) { m.header[kA]["dtype"] = "I32"; }, at(kA),
       "is int32, not a floating-point tensor", "save the adapter in fp32 or bf16"},
      {"a target without an adapter", [](HandMade& m) { m.config["target_modules"].push_back("v_proj"); }, "",
       "holds no adapter for the target \"v_proj\" of adapter_config.json",
       "the file is incomplete, or of another adapter"},
      {"an adapter without a target", [](HandMade& m) { m.config["target_modules"] = {"v_proj"}; },
       " (model.layers.0.self_attn.q_proj)",
       "has an adapter, but target_modules of adapter_config.json does not name it", "target_modules: v_proj"},
      {"nothing", [](HandMade& m) { m.header = json::object(), m.bytes = 0; }, "",
       "holds no adapter for the target \"q_proj\" of adapter_config.json",
       "the file is incomplete, or of another adapter"},
  };
  for (const Row& row : rows) {
    TempFolder folder;
    HandMade made;
    row.damage(made);
    made.write(folder.path());
    const auto adapter = PeftFolder::open(folder.path());
    ASSERT_FALSE(adapter.ok()) << row.name;
    EXPECT_EQ(adapter.error().where, (folder / kPeftModelFile).string() + row.where) << row.name;
    EXPECT_EQ(adapter.error().problem, row.problem) << row.name;
    EXPECT_EQ(adapter.error().hint, row.hint) << row.name;
  }
}

TEST(PeftFolder, RefusesDamagedFolders) {
  TempFolder folder;
  const auto problem = [&](const std::filesystem::path& path) {
    const auto adapter = PeftFolder::open(path);
    return adapter.ok() ? std::string("none") : adapter.error().problem;
  };
  EXPECT_EQ(problem(folder / "nowhere"), "no such folder");
  EXPECT_EQ(problem(folder.path()), "has no adapter_config.json");
  HandMade().write(folder.path());
  EXPECT_EQ(problem(folder.path()), "none");
  const std::string whole = read_file(folder / kPeftModelFile);
  for (size_t length = 0; length < whole.size(); ++length) {
    write_file(folder / kPeftModelFile, whole.substr(0, length));
    EXPECT_NE(problem(folder.path()), "none") << "cut at " << length;
  }
  std::filesystem::remove(folder / kPeftModelFile);
  EXPECT_EQ(problem(folder.path()), "has no adapter_model.safetensors");
  write_file(folder / "adapter_model.bin", "pickle");
  EXPECT_EQ(PeftFolder::open(folder.path()).error().hint,
            "adapter_model.bin is not read; save the adapter with safe_serialization=True");
}

}  // namespace
}  // namespace fivefold
