#include "store/peft_method.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "spec/adapter.h"
#include "store/peft_writer.h"
#include "store/test_files.h"

namespace fivefold {
namespace {

// Two layers; q, k and v [8, 8], [4, 8], [4, 8].
ModelSpec tiny() {
  return parse_model_config(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8,
    "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "vocab_size": 16, "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "tie_word_embeddings": false})",
                            "tiny")
      .value();
}

constexpr auto method_of_test = [] {
  MethodConfig method;
  method.kind = MethodKind::kLora;
  method.rank = 2;
  method.alpha = 3;
  method.targets = {"q_proj", "v_proj"};
  return method;
};

Inventory inventory_of(const MethodConfig& method) { return build_inventory(with_method(tiny(), method)); }

// Writes the adapter of a run with `method`, all zeros.
void write_adapter(const std::filesystem::path& folder, const MethodConfig& method) {
  const Inventory inventory = inventory_of(method);
  const auto tensors = peft_tensors_of(inventory, DType::kFloat32);
  PeftWriter writer(folder, peft_config_of(method, inventory, "tiny"), tensors);
  for (const TensorDeclaration& tensor : tensors)
    writer.write(tensor.name, std::vector<std::byte>(static_cast<size_t>(tensor.bytes())));
  writer.finish();
}

TEST(PeftMethod, AnAdapterOfARunIsOneOfPeft) {
  TempFolder folder;
  write_adapter(folder.path(), method_of_test());
  const auto adapter = PeftFolder::open(folder.path());
  ASSERT_TRUE(adapter.ok()) << adapter.error().message();
  EXPECT_EQ(adapter->config(),
            (PeftConfig{.rank = 2, .alpha = 3, .targets = {"q_proj", "v_proj"}, .base_model = "tiny"}));
  ASSERT_EQ(adapter->modules().size(), 4u);
  EXPECT_EQ(adapter->modules()[1].name, "model.layers.0.self_attn.v_proj");
  EXPECT_EQ(adapter->modules()[1].out, 4);
  EXPECT_EQ(adapter->modules()[1].in, 8);
  EXPECT_TRUE(check_peft_method(*adapter, method_of_test(), inventory_of(method_of_test())).ok());
  EXPECT_EQ(method_settings(*adapter),
            (std::vector<std::string>{"method.rank=2", "method.alpha=3", "method.rank_stabilized=false",
                                      "method.dora=false", "method.targets=q_proj,v_proj"}));
}

TEST(PeftMethod, ADifferenceIsNamedWithTheSettingsThatMatch) {
  TempFolder folder;
  write_adapter(folder.path(), method_of_test());
  const auto adapter = PeftFolder::open(folder.path());
  ASSERT_TRUE(adapter.ok());
  const auto error = [&](const std::function<void(MethodConfig&)>& change) {
    MethodConfig method = method_of_test();
    change(method);
    const Status status = check_peft_method(*adapter, method, inventory_of(method));
    return status.ok() ? Error{} : status.error();
  };
  Error wrong = error([](MethodConfig& method) { method.rank = 4, method.alpha = 0.5, method.rank_stabilized = true; });
  EXPECT_EQ(wrong.where, "method.adapter: " + folder.path().string());
  EXPECT_EQ(wrong.problem,
            "method.rank is 4, the adapter has 2; method.alpha is 0.5, the adapter has 3; "
            "method.rank_stabilized is true, the adapter has false");
  EXPECT_EQ(wrong.hint, "use --set method.rank=2 --set method.alpha=3 --set method.rank_stabilized=false");

  wrong = error([](MethodConfig& method) { method.targets = {"all-linear"}; });
  EXPECT_EQ(wrong.where, folder.path().string() + " (base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight)");
  EXPECT_EQ(wrong.problem, "is missing: the run adapts this module, the adapter does not");
  EXPECT_EQ(wrong.hint, "use --set method.targets=q_proj,v_proj");

  wrong = error([](MethodConfig& method) { method.targets = {"v_proj"}; });
  EXPECT_EQ(wrong.where, folder.path().string() + " (base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight)");
  EXPECT_EQ(wrong.problem, "is of a module that the run does not adapt");

  EXPECT_TRUE(error([](MethodConfig& method) { method.dropout = 0.1; }).problem.empty());
}

TEST(PeftMethod, AnAdapterOfAnotherModelIsRefused) {
  TempFolder folder;
  write_adapter(folder.path(), method_of_test());
  const auto adapter = PeftFolder::open(folder.path());
  ASSERT_TRUE(adapter.ok());
  ModelSpec wider = tiny();
  wider.hidden = 16;
  const Status status =
      check_peft_method(*adapter, method_of_test(), build_inventory(with_method(wider, method_of_test())));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().problem, "has shape [2, 8], the model needs [2, 16]");
  EXPECT_EQ(status.error().hint, "the adapter belongs to another base");
}

TEST(PeftMethod, PeftsAdapterOfAllLinearsIsThatOfAllLinearsHere) {
  const char* shared = std::getenv("FIVEFOLD_SHARED");
  const auto oracles = std::filesystem::path(shared != nullptr ? shared : FIVEFOLD_SHARED) / "oracles";
  if (!std::filesystem::exists(oracles)) GTEST_SKIP() << oracles << " is not there";
  const auto adapter = PeftFolder::open(oracles / "10_lora_all_linear_r4");
  const auto model = read_model_config(oracles / "01_llama_gqa_untied" / "config.json");
  ASSERT_TRUE(adapter.ok() && model.ok());
  MethodConfig method;
  method.kind = MethodKind::kQlora;
  method.rank = 4;
  method.alpha = 8;
  const Status status = check_peft_method(*adapter, method, build_inventory(with_method(*model, method)));
  EXPECT_TRUE(status.ok()) << status.error().message();
}

}  // namespace
}  // namespace fivefold
