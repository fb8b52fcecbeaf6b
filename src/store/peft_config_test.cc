#include "store/peft_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "store/test_files.h"

namespace fivefold {
namespace {

using nlohmann::json;

// As PEFT 0.21.2 saved it for LoraConfig(r=4, lora_alpha=8, ...), every key of the file.
constexpr const char* kSaved = R"({
  "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
  "base_model_name_or_path": "base", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
  "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
  "init_lora_weights": true, "kasa_config": null, "layer_replication": null, "layers_pattern": null,
  "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 8, "lora_bias": false, "lora_dropout": 0.05,
  "lora_ga_config": null, "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
  "monteclora_config": null, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 4,
  "rank_pattern": {}, "revision": null, "target_modules": ["v_proj", "q_proj"], "target_parameters": null,
  "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_bdlora": null, "use_dora": false,
  "use_qalora": false, "use_rslora": false, "velora_config": null})";

TEST(PeftConfig, ReadsWhatPeftSaves) {
  const auto config = parse_peft_config(kSaved, "adapter_config.json");
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(
      *config,
      (PeftConfig{.rank = 4, .alpha = 8, .dropout = 0.05, .targets = {"q_proj", "v_proj"}, .base_model = "base"}));
  EXPECT_EQ(config->scale(), 2.0);  // 8 / 4
}

TEST(PeftConfig, RankStabilizedScaleDividesByTheRoot) {
  const PeftConfig config{.rank = 16, .alpha = 8, .rank_stabilized = true};
  EXPECT_EQ(config.scale(), 2.0);  // 8 / sqrt(16)
}

TEST(PeftConfig, IsWrittenSoThatItIsReadTheSame) {
  for (const PeftConfig& config :
       {PeftConfig{.targets = {"all-linear"}}, PeftConfig{.rank = 64,
                                                          .alpha = 11.5,
                                                          .dropout = 0.1,
                                                          .rank_stabilized = true,
                                                          .dora = true,
                                                          .fan_in_fan_out = true,
                                                          .targets = {"c_attn", "c_proj"},
                                                          .base_model = "a \"name\"/\xc3\xa9"}}) {
    const auto again = parse_peft_config(write_peft_config(config), "again");
    ASSERT_TRUE(again.ok()) << again.error().message();
    EXPECT_EQ(*again, config);
  }
}

// A whole alpha has no point, one name stays a list, and what is not used has PEFT's own neutral value.
TEST(PeftConfig, WritesTypesThatPeftExpects) {
  const auto written = json::parse(write_peft_config({.rank = 4, .alpha = 8, .targets = {"q_proj"}}));
  EXPECT_TRUE(written["lora_alpha"].is_number_integer());
  EXPECT_EQ(written["target_modules"], json::array({"q_proj"}));
  const auto saved = json::parse(kSaved);
  const std::set<std::string> own = {"base_model_name_or_path", "target_modules", "lora_dropout"};
  for (const auto& [key, value] : written.items()) {
    ASSERT_TRUE(saved.contains(key)) << key;
    if (own.contains(key)) continue;
    EXPECT_EQ(value, saved[key]) << key;
  }
}

TEST(PeftConfig, TargetsAreEndsOfModuleNames) {
  const PeftConfig config{.targets = {"layers.1.mlp.up_proj", "q_proj"}};
  EXPECT_TRUE(config.targets_module("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(config.targets_module("model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(config.targets_module("model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(config.targets_module("model.layers.0.self_attn.qq_proj"));
}

// One setting of the saved file is changed (or, without a value, taken out).
struct Row {
  const char* key;
  const char* value;
  const char* problem;
  const char* hint;
};

TEST(PeftConfig, RefusesWhatItWouldReadWrongly) {
  const char* one_rank = "one rank for all modules is read; train the adapter again without it";
  const char* all_layers = "an adapter covers all layers; train it again without this key";
  const char* list = "a list of module names such as \"q_proj\", or \"all-linear\"";
  const char* other = "plain LoRA, rsLoRA and DoRA are read; merge such an adapter with PEFT";
  const char* start = "let PEFT convert it: save_pretrained(..., path_initial_model_for_weight_conversion=...)";
  const std::vector<Row> rows = {
      {"peft_type", "\"IA3\"", "is \"IA3\"", "\"LORA\" is read"},
      {"peft_type", "", "is missing", "an adapter that PEFT saved has it"},
      {"peft_type", "7", "is 7, not text", ""},
      {"task_type", "\"SEQ_CLS\"", "is \"SEQ_CLS\"", "adapters of language models (\"CAUSAL_LM\") are read"},
      {"bias", "\"lora_only\"", "is \"lora_only\": biases are trained too",
       "\"none\" is read; train the adapter again with it"},
      {"rank_pattern", R"({"q_proj":8})", "is {\"q_proj\":8}, which is not implemented", one_rank},
      {"alpha_pattern", R"({"q_proj":8})", "is {\"q_proj\":8}, which is not implemented",
       "one alpha for all modules is read; train the adapter again without it"},
      {"modules_to_save", R"(["lm_head"])", "is [\"lm_head\"], which is not implemented",
       "whole modules trained beside the adapter are not read; save the adapter without them"},
      {"layers_to_transform", "[0]", "is [0], which is not implemented", all_layers},
      {"layers_to_transform", "0", "is 0, which is not implemented", all_layers},
      {"layers_pattern", "\"h\"", "is \"h\", which is not implemented", all_layers},
      {"target_parameters", R"(["experts"])", "is [\"experts\"], which is not implemented",
       "adapters of linear modules are read, not of single parameters (experts)"},
      {"lora_bias", "true", "is true, which is not implemented", "train the adapter again with lora_bias = false"},
      {"use_qalora", "true", "is true, which is not implemented", other},
      {"a_key_of_next_year", "{\"x\":1}", "is {\"x\":1}, which is not implemented", other},
      {"init_lora_weights", "\"pissa\"",
       "is \"pissa\": such an adapter belongs to a base whose weights it changed at its start", start},
      {"r", "", "is missing", "the rank of the adapter, for example 16"},
      {"r", "0", "is 0, not a rank", "a whole number from 1 on"},
      {"r", "-4", "is -4, not a rank", "a whole number from 1 on"},
      {"r", "4.0", "is 4.0, not a rank", "a whole number from 1 on"},
      {"r", "18446744073709551615", "is 18446744073709551615, not a rank", "a whole number from 1 on"},
      {"lora_alpha", "0", "is not above 0, or beyond 1e9", "the adapter's output is scaled by lora_alpha / r"},
      {"lora_alpha", "\"8\"", "is \"8\", not a number", ""},
      {"lora_dropout", "1", "is not from 0 up to, and without, 1", "0 is no dropout"},
      {"use_dora", "1", "is 1, not true or false", ""},
      {"fan_in_fan_out", "\"no\"", "is \"no\", not true or false", ""},
      {"base_model_name_or_path", "[]", "is [], not text", ""},
      {"target_modules", "", "is missing", list},
      {"target_modules", "[]", "is []", list},
      {"target_modules", "{\"q_proj\":1}", "is {\"q_proj\":1}", list},
      {"target_modules", "\".*q_proj\"", "is the regular expression \".*q_proj\"",
       "write the modules' names as a list, or \"all-linear\""},
      {"target_modules", "[\"q_proj\",\"\"]", "lists \"\", not the name of a module", "for example \"q_proj\""},
      {"target_modules", "[\"all-linear\",\"q_proj\"]", "lists \"all-linear\" beside names of modules",
       "write one or the other"},
  };
  for (const Row& row : rows) {
    auto saved = json::parse(kSaved);
    saved.erase(row.key);
    if (*row.value != '\0') saved[row.key] = json::parse(row.value);
    const auto config = parse_peft_config(saved.dump(), "config");
    ASSERT_FALSE(config.ok()) << row.key << " " << row.value;
    EXPECT_EQ(config.error().where, "config (" + std::string(row.key) + ")");
    EXPECT_EQ(config.error().problem, row.problem);
    EXPECT_EQ(config.error().hint, row.hint);
  }
}

TEST(PeftConfig, RefusesDamagedText) {
  for (const std::string text : {"", "[]", "{", "{\"r\": 4", "{\"r\": 4, \"r\": 8}", "{\"peft_type\": \"\xff\"}"}) {
    const auto config = parse_peft_config(text, "config");
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.error().where, "config");
  }
}

}  // namespace
}  // namespace fivefold
