#include "cli/adapter_merge.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "spec/inventory.h"
#include "store/hub_writer.h"
#include "store/tensor_values.h"
#include "store/test_files.h"

namespace fivefold {
namespace {

std::filesystem::path oracle(const char* name) {
  const char* shared = std::getenv("FIVEFOLD_SHARED");
  return std::filesystem::path(shared != nullptr ? shared : FIVEFOLD_SHARED) / "oracles" / name;
}

#define SKIP_WITHOUT_ORACLES() \
  if (!std::filesystem::exists(oracle("README.md"))) GTEST_SKIP() << oracle("README.md") << " is not there"

std::vector<float> values(const HubFolder& folder, const std::string& name) {
  const auto tensor = folder.tensor(name);
  EXPECT_TRUE(tensor.ok()) << tensor.error().message();
  return tensor.ok() ? decode_values(tensor->info.dtype, tensor->bytes) : std::vector<float>();
}

struct Base {
  explicit Base(const std::filesystem::path& path)
      : folder(HubFolder::open(path).value()), model(read_model_config(path / "config.json").value()) {}
  HubFolder folder;
  ModelSpec model;
  Inventory inventory = build_inventory(model);
};

// The adapter of 10 in the model of 01, as PEFT merged it in fp32: the same bits.
TEST(AdapterMerge, GivesTheWeightsThatPeftGives) {
  SKIP_WITHOUT_ORACLES();
  const Base base(oracle("01_llama_gqa_untied"));
  const auto adapter = PeftFolder::open(oracle("10_lora_all_linear_r4"));
  ASSERT_TRUE(adapter.ok());
  TempFolder to;
  const auto report = write_merged_weights(base.folder, base.model, adapter_values(*adapter), "adapter", to.path(), {});
  ASSERT_TRUE(report.ok()) << report.error().message();
  EXPECT_EQ(report->merged, 14);
  EXPECT_EQ(report->parameters, base.inventory.num_parameters());
  EXPECT_GT(report->change_norm, 0);
  EXPECT_EQ(report->quantisation_error, 0);  // not measured

  const auto merged = HubFolder::open(to.path());
  const auto expected = HubFolder::open(oracle("10_lora_all_linear_r4") / "merged");
  ASSERT_TRUE(merged.ok() && expected.ok());
  EXPECT_EQ(merged->names(), expected->names());
  for (const std::string& name : expected->names()) EXPECT_EQ(values(*merged, name), values(*expected, name)) << name;
}

// Every linear becomes the one that the run of 11 saw, bitsandbytes' NF4 of it, plus s B A; the rest stays.
TEST(AdapterMerge, IntoTheQuantisedBase) {
  SKIP_WITHOUT_ORACLES();
  const Base base(oracle("01_llama_gqa_untied"));
  const auto adapter = PeftFolder::open(oracle("10_lora_all_linear_r4"));
  TempFolder to;
  const auto report = write_merged_weights(base.folder, base.model, adapter_values(*adapter), "adapter", to.path(),
                                           {.base = MergeBase::kQuantised});
  ASSERT_TRUE(report.ok()) << report.error().message();
  // NF4 of normal weights loses about 9 % of their norm ; a copy of the result in NF4 loses as much again.
  EXPECT_NEAR(report->quantisation_error / report->four_bit_norm, 0.09, 0.02);
  EXPECT_GT(report->requantisation_error, report->quantisation_error);
  const auto merged = HubFolder::open(to.path());
  const auto nf4 = SafetensorsFile::open(oracle("11_nf4_qlora") / "case01_dequantised_double.safetensors");
  ASSERT_TRUE(merged.ok() && nf4.ok());
  for (const std::string& name : merged->names()) {
    if (!name.ends_with("_proj.weight")) {
      EXPECT_EQ(values(*merged, name), values(base.folder, name)) << name;
      continue;
    }
    const std::string stem = "base_model.model." + name.substr(0, name.size() - 7);
    const auto a = adapter->tensor(stem + ".lora_A.weight"), b = adapter->tensor(stem + ".lora_B.weight");
    ASSERT_TRUE(a.ok() && b.ok()) << name;
    const auto a_values = decode_values(a->info.dtype, a->bytes), b_values = decode_values(b->info.dtype, b->bytes);
    const auto in = static_cast<size_t>(a->info.shape[1]);
    const TensorInfo* info = nf4->find(name);
    ASSERT_NE(info, nullptr);
    const auto from = decode_values(info->dtype, nf4->bytes(*info)), got = values(*merged, name);
    for (size_t i = 0; i < got.size(); ++i) {
      double want = from[i];
      for (size_t k = 0; k < 4; ++k) want += 2.0 * b_values[i / in * 4 + k] * a_values[k * in + i % in];
      ASSERT_NEAR(got[i], want, 2e-6) << name;
    }
  }
}

// An adapter of one kind of module of a model, with values from a formula.
AdapterValues made_up(const Inventory& inventory, const std::string& ending, PeftConfig config) {
  AdapterValues adapter{std::move(config), {}, nullptr};
  adapter.config.targets = {ending};
  for (const Unit& unit : inventory.units)
    for (const ParameterEntry& entry : unit.parameters)
      for (const HubPart& part : entry.parts)
        if (part.name.ends_with(ending + ".weight"))
          adapter.modules.push_back({part.name.substr(0, part.name.size() - 7), part.rows, entry.whole_cols()});
  const int64_t rank = adapter.config.rank;
  adapter.read = [rank](const PeftModule& module, PeftTensor kind) -> Result<std::vector<float>> {
    std::vector<float> values(static_cast<size_t>(rank * (kind == PeftTensor::kA ? module.in : module.out)));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i % 7) / 8.0f - (kind == PeftTensor::kA ? 0.25f : 0.5f);
    return values;
  };
  return adapter;
}

// GPT-2 has its matrices [in, out] on disk, its adapters A [r, in] and B [out, r] as all do. Square modules too: a
// merge the wrong way round would not be seen by their shapes. alpha 3, rank 2: scale 1.5.
TEST(AdapterMerge, MatricesThatAreStoredTheOtherWayRound) {
  SKIP_WITHOUT_ORACLES();
  const Base base(oracle("05_gpt2"));
  const PeftConfig config{.rank = 2, .alpha = 3, .fan_in_fan_out = true};
  const AdapterValues adapter = made_up(base.inventory, "attn.c_proj", config);
  ASSERT_EQ(adapter.modules.size(), 2u);
  TempFolder to;
  const auto report = write_merged_weights(base.folder, base.model, adapter, "adapter", to.path(), {});
  ASSERT_TRUE(report.ok()) << report.error().message();
  const auto merged = HubFolder::open(to.path());
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged->names(), base.folder.names());
  for (const std::string& name : merged->names()) {
    const auto got = values(*merged, name), before = values(base.folder, name);
    if (!name.ends_with("attn.c_proj.weight")) {
      EXPECT_EQ(got, before) << name;
      continue;
    }
    for (size_t in = 0; in < 48; ++in) {
      for (size_t out = 0; out < 48; ++out) {
        double want = before[in * 48 + out];
        for (size_t k = 0; k < 2; ++k)
          want += 1.5 * (static_cast<double>((out * 2 + k) % 7) / 8 - 0.5) *
                  (static_cast<double>((k * 48 + in) % 7) / 8 - 0.25);
        ASSERT_NEAR(got[in * 48 + out], want, 1e-6) << name;
      }
    }
  }
}

TEST(AdapterMerge, StoresInTheTypeOfTheBaseOrInOneThatIsAskedFor) {
  SKIP_WITHOUT_ORACLES();
  const Base base(oracle("01_llama_gqa_untied"));
  const AdapterValues adapter = made_up(base.inventory, "q_proj", {.rank = 2, .alpha = 2});
  TempFolder to;
  ASSERT_TRUE(
      write_merged_weights(base.folder, base.model, adapter, "adapter", to / "bf16", {.dtype = DType::kBFloat16}).ok());
  ASSERT_TRUE(write_merged_weights(base.folder, base.model, adapter, "adapter", to / "fp32", {}).ok());
  const auto bf16 = HubFolder::open(to / "bf16"), fp32 = HubFolder::open(to / "fp32");
  ASSERT_TRUE(bf16.ok() && fp32.ok());
  for (const std::string& name : bf16->names()) {
    EXPECT_EQ(bf16->tensor(name)->info.dtype, DType::kBFloat16);
    const auto exact = values(*fp32, name), rounded = values(*bf16, name);
    // Once: each is the nearest bf16 of the sum in fp32.
    EXPECT_EQ(rounded, decode_values(DType::kBFloat16, encode_values(exact, DType::kBFloat16))) << name;
  }
}

TEST(AdapterMerge, RefusesAnAdapterOfAnotherBase) {
  SKIP_WITHOUT_ORACLES();
  const Base llama(oracle("01_llama_gqa_untied")), other(oracle("08_llama_seq128")), tied(oracle("04_qwen2_qkv_bias"));
  const auto error = [&](const Base& base, const AdapterValues& adapter) {
    TempFolder to;
    const auto report = write_merged_weights(base.folder, base.model, adapter, "adapter", to.path(), {});
    EXPECT_TRUE(names_in(to.path()).empty());
    return report.ok() ? Error{} : report.error();
  };
  const AdapterValues adapter = made_up(llama.inventory, "q_proj", {.rank = 2, .alpha = 2});
  Error wrong = error(other, adapter);
  EXPECT_EQ(wrong.where, "adapter (model.layers.0.self_attn.q_proj)");
  EXPECT_EQ(wrong.problem, "is for a matrix [48, 48], the model has [32, 32]");
  EXPECT_EQ(wrong.hint, "the adapter belongs to another base");

  AdapterValues fewer = adapter;
  fewer.modules.pop_back();
  wrong = error(llama, fewer);
  EXPECT_EQ(wrong.where, "adapter (model.layers.1.self_attn.q_proj)");
  EXPECT_EQ(wrong.problem, "has no adapter, though the model has this module");

  AdapterValues more = adapter;
  more.modules.push_back({"model.layers.2.self_attn.q_proj", 48, 48});
  wrong = error(llama, more);
  EXPECT_EQ(wrong.where, "adapter (model.layers.2.self_attn.q_proj)");
  EXPECT_EQ(wrong.problem, "is no matrix of this model");

  AdapterValues conv = adapter;
  conv.config.fan_in_fan_out = true;
  wrong = error(llama, conv);
  EXPECT_EQ(wrong.where, "adapter (fan_in_fan_out)");
  EXPECT_EQ(wrong.hint, "it belongs to models with Conv1D modules (GPT-2)");

  // With tied embeddings the output matrix is the embedding's: changing one would change both.
  const AdapterValues head = made_up(llama.inventory, "lm_head", {.rank = 2, .alpha = 2});
  ASSERT_EQ(head.modules.size(), 1u);
  EXPECT_EQ(error(tied, head).problem, "is no matrix of this model");
}

}  // namespace
}  // namespace fivefold
