// Every damaged or contradictory config.json is an error that names the key; none crashes.
#include <gtest/gtest.h>

#include <fstream>

#include "spec/model.h"

namespace fivefold {
namespace {

// A good config with one key replaced or added (value as JSON text); "" removes the key.
std::string llama_with(const std::string& key, const std::string& value,
                       const std::string& architecture = "LlamaForCausalLM") {
  std::vector<std::pair<std::string, std::string>> keys = {{"architectures", "[\"" + architecture + "\"]"},
                                                           {"hidden_size", "64"},
                                                           {"num_hidden_layers", "4"},
                                                           {"num_attention_heads", "4"},
                                                           {"num_key_value_heads", "2"},
                                                           {"intermediate_size", "128"},
                                                           {"vocab_size", "256"}};
  bool found = false;
  for (auto& [name, text] : keys)
    if (name == key) {
      text = value;
      found = true;
    }
  if (!found) keys.emplace_back(key, value);
  std::string json = "{";
  for (const auto& [name, text] : keys)
    if (!text.empty()) json += (json.size() > 1 ? ", \"" : "\"") + name + "\": " + text;
  return json + "}";
}

const std::string kQwenMoe = "Qwen3MoeForCausalLM";
std::string qwen_moe(const std::string& more) {
  return R"({"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 2, "vocab_size": 256, "moe_intermediate_size": 32, )" +
         more + "}";
}
std::string deepseek(const std::string& more) {
  return R"({"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4,
      "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256, "moe_intermediate_size": 32,
      "n_routed_experts": 8, "num_experts_per_tok": 2, )" +
         more + "}";
}
std::string nemotron(const std::string& more) {
  return R"({"architectures": ["NemotronHForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
      "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, )" +
         more + "}";
}
std::string scaled(const std::string& scaling) { return llama_with("rope_scaling", scaling); }

struct BadConfig {
  std::string text;
  std::string message;  // Error::message()
};

const BadConfig kBad[] = {
    // Not a config at all.
    {"", "c.json: not valid JSON, or cut off (expected a config.json as on the Hugging Face Hub)"},
    {"hidden_size = 64", "c.json: not valid JSON, or cut off (expected a config.json as on the Hugging Face Hub)"},
    {llama_with("x", "1").substr(0, 60),
     "c.json: not valid JSON, or cut off (expected a config.json as on the Hugging Face Hub)"},
    {"\xff\xfe{}", "c.json: not valid JSON, or cut off (expected a config.json as on the Hugging Face Hub)"},
    {"{\"a\": \"\xc3\x28\"}", "c.json: not valid JSON, or cut off (expected a config.json as on the Hugging Face Hub)"},
    {"[1, 2]", "c.json: not a JSON object (expected a config.json as on the Hugging Face Hub)"},
    {"null", "c.json: not a JSON object (expected a config.json as on the Hugging Face Hub)"},
    // Which model.
    {llama_with("architectures", "[\"LlamaForCasualLM\"]"),
     "c.json: architectures: unknown architecture \"LlamaForCasualLM\" (did you mean LlamaForCausalLM?)"},
    {llama_with("architectures", "\"LlamaForCausalLM\""),
     "c.json: architectures: expected a list of strings, found \"LlamaForCausalLM\""},
    {llama_with("architectures", "[7]"), "c.json: architectures: expected a list of strings, found 7"},
    {llama_with("model_type", "\"gpt2\""),
     "c.json: model_type: \"gpt2\" contradicts architecture LlamaForCausalLM (LlamaForCausalLM goes with model_type "
     "\"llama\")"},
    // Sizes.
    {llama_with("hidden_size", ""), "c.json: hidden_size: missing"},
    {llama_with("hidden_size", "null"), "c.json: hidden_size: missing"},
    {llama_with("vocab_size", "0"), "c.json: vocab_size: 0 is out of range (1 to 16777216)"},
    {llama_with("intermediate_size", "-128"), "c.json: intermediate_size: -128 is out of range (1 to 16777216)"},
    {llama_with("num_hidden_layers", "4000000000"),
     "c.json: num_hidden_layers: 4000000000 is out of range (1 to 4096)"},
    {llama_with("hidden_size", "99999999999999999999"), "c.json: hidden_size: expected a whole number, found 1e+20"},
    {llama_with("hidden_size", "18446744073709551615"),
     "c.json: hidden_size: 18446744073709551615 is out of range (1 to 16777216)"},
    {llama_with("hidden_size", "64.5"), "c.json: hidden_size: expected a whole number, found 64.5"},
    {llama_with("hidden_size", "\"64\""), "c.json: hidden_size: expected a whole number, found \"64\""},
    {llama_with("hidden_size", "[64]"), "c.json: hidden_size: expected a whole number, found a list"},
    {llama_with("hidden_size", "true"), "c.json: hidden_size: expected a whole number, found true"},
    {llama_with("num_key_value_heads", "3"),
     "c.json: num_key_value_heads: 3 kv heads do not divide 4 heads (each kv head serves a whole number of query "
     "heads)"},
    {llama_with("num_key_value_heads", "8"),
     "c.json: num_key_value_heads: 8 kv heads do not divide 4 heads (each kv head serves a whole number of query "
     "heads)"},
    {llama_with("hidden_size", "66"),
     "c.json: num_attention_heads: 4 heads do not divide hidden_size 66 and there is no head_dim (give head_dim, or a "
     "number "
     "of heads that divides hidden_size)"},
    {llama_with("head_dim", "15"),
     "c.json: head_dim: RoPE turns pairs, but 15 dims of a head of 15 would rotate (the number of rotating dims must "
     "be even)"},
    {llama_with("tie_word_embeddings", "\"yes\""),
     "c.json: tie_word_embeddings: expected true or false, found \"yes\""},
    {llama_with("rms_norm_eps", "-1e-6"), "c.json: rms_norm_eps: -1e-06 is out of range (0 to 1)"},
    {llama_with("rms_norm_eps", "\"1e-6\""), "c.json: rms_norm_eps: expected a number, found \"1e-6\""},
    {llama_with("hidden_act", "\"silo\""), "c.json: hidden_act: unknown activation \"silo\" (did you mean silu?)"},
    {llama_with("torch_dtype", "\"bfloat\""), "c.json: torch_dtype: unknown dtype \"bfloat\" (did you mean bfloat16?)"},
    // By hand: per layer 2^24 x 4 x (4 x 2^22 + 2^24) = 2^51; times 4,096 is 2^63.
    {R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 16777216, "num_hidden_layers": 4096, "num_attention_heads": 4,
         "intermediate_size": 16777216, "vocab_size": 256})",
     "c.json: the sizes multiply to 9.2e+18 parameters (is one of them mistyped?)"},
    // RoPE.
    {scaled(R"({"rope_type": "longrope"})"),
     "c.json: rope_scaling.rope_type: unknown RoPE type \"longrope\" (known: default, linear, dynamic, llama3, yarn)"},
    {scaled(R"({"type": "linear"})"), "c.json: rope_scaling.factor: missing"},
    {scaled(R"({"type": "linear", "factor": 0.5})"), "c.json: rope_scaling.factor: 0.5 is out of range (1 to 1000000)"},
    {scaled(R"({"type": "yarn", "original_max_position_embeddings": 1048576})"),
     "c.json: rope_scaling.factor: missing, and max_position_embeddings 2048 / original_max_position_embeddings "
     "1048576 "
     "is out of range (1 to 1000000)"},
    {scaled(R"({"type": "linear", "rope_type": "yarn", "factor": 2})"),
     "c.json: rope_scaling.rope_type: \"yarn\" contradicts type \"linear\" (keep one of them)"},
    {scaled(R"({"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})"),
     "c.json: rope_scaling.high_freq_factor: 4 is not above low_freq_factor 4 (Llama 3.1 has 1 and 4)"},
    {scaled("\"linear\""), "c.json: rope_scaling: expected an object, found \"linear\""},
    {llama_with("rope_theta", "0"), "c.json: rope_theta: 0 is out of range (1.000000001 to 1000000000000000)"},
    {llama_with("partial_rotary_factor", "0.2"),
     "c.json: partial_rotary_factor: RoPE turns pairs, but 3 dims of a head of 16 would rotate (the number of rotating "
     "dims "
     "must be even)"},
    {llama_with("rope_parameters", R"({"rope_theta": 5e5}, "rope_theta": 1e4)"),
     "c.json: rope_theta: 10000 contradicts rope_parameters.rope_theta (keep one of them)"},
    {llama_with("rope_parameters", R"({"rope_theta": 5e5}, "rope_scaling": {"type": "linear", "factor": 2})"),
     "c.json: rope_scaling: given beside rope_parameters (keep one of them)"},
    // Contradictions and what is not supported.
    {llama_with("torch_dtype", R"("float16", "dtype": "bfloat16")"),
     "c.json: dtype: \"bfloat16\" contradicts torch_dtype \"float16\" (keep one of them)"},
    {llama_with("quantization_config", R"({"quant_method": "fp8"})"),
     "c.json: quantization_config: the weights are stored quantised (fp8) (use the config.json of the unquantised "
     "model, or "
     "remove this key to plan for dequantised weights)"},
    {llama_with("layer_types", R"(["full_attention"])", "Qwen3ForCausalLM"),
     "c.json: layer_types: 1 entries for 4 layers (one per layer)"},
    {llama_with("layer_types", R"(["full_attention", "full_attention", "chunked_attention", "full_attention"])",
                "Qwen3ForCausalLM"),
     "c.json: layer_types: unknown layer type \"chunked_attention\" (did you mean full_attention?)"},
    {llama_with("sliding_window", "0", "MistralForCausalLM"),
     "c.json: sliding_window: 0 is out of range (1 to 1099511627776)"},
    {R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 50, "n_layer": 2, "n_head": 4, "vocab_size": 144})",
     "c.json: n_head: 4 heads do not divide n_embd 50 (a number of heads that divides n_embd)"},
    {R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 144,
         "add_cross_attention": true})",
     "c.json: add_cross_attention: true is not supported: only decoders"},
    // Experts.
    {qwen_moe(R"("num_experts": 8, "num_experts_per_tok": 9)"),
     "c.json: num_experts_per_tok: 9 experts per token of 8 experts (at most 8)"},
    {qwen_moe(R"("num_experts_per_tok": 2)"), "c.json: num_experts: missing"},
    {qwen_moe(R"("num_experts": 8, "num_local_experts": 16, "num_experts_per_tok": 2)"),
     "c.json: num_local_experts: 16 contradicts num_experts 8 (keep one of them)"},
    {qwen_moe(R"("num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [4])"),
     "c.json: mlp_only_layers: 4 is out of range (0 to 3)"},
    {qwen_moe(R"("num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [0, 1, 2, 3])"),
     "c.json: mlp_only_layers: leaves no layer with experts"},
    {qwen_moe(R"("num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [0])"),
     "c.json: intermediate_size: missing"},
    {deepseek(R"("n_group": 3)"), "c.json: n_group: 3 groups do not divide 8 experts"},
    {deepseek(R"("n_group": 2, "topk_group": 4)"), "c.json: topk_group: 4 groups per token of 2 groups (at most 2)"},
    {deepseek(R"("first_k_dense_replace": 4)"),
     "c.json: first_k_dense_replace: 4 dense layers of 4 leave none with experts (at most 3)"},
    {deepseek(R"("topk_method": "greedy")"), "c.json: topk_method: \"greedy\" is not supported (noaux_tc)"},
    {deepseek(R"("qk_rope_head_dim": 7)"),
     "c.json: head_dim: RoPE turns pairs, but 7 dims of a head of 7 would rotate (the number of rotating dims must be "
     "even)"},
    // Gemma and hybrids.
    {R"({"architectures": ["Gemma3ForConditionalGeneration"]})", "c.json: text_config: missing"},
    {R"({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": []})",
     "c.json: text_config: expected an object, found a list"},
    {R"({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"hidden_size": 0}})",
     "c.json: text_config.hidden_size: 0 is out of range (1 to 16777216)"},
    {llama_with("attn_logit_softcapping", "50.0", "Gemma3ForCausalLM"),
     "c.json: attn_logit_softcapping: capped attention scores (Gemma 2) are not supported"},
    {llama_with("partial_rotary_factor", "0.5", "Gemma3ForCausalLM"),
     "c.json: partial_rotary_factor: Gemma 3 rotates whole heads (1, or leave it out)"},
    {llama_with("rope_parameters", R"({"full_attention": {"partial_rotary_factor": 0.25}})", "Gemma3ForCausalLM"),
     "c.json: rope_parameters.full_attention.partial_rotary_factor: Gemma 3 rotates whole heads (1, or leave it out)"},
    {nemotron(R"("hybrid_override_pattern": "M-?")"),
     "c.json: hybrid_override_pattern: unknown layer letter '?' (known: M, *, -, E)"},
    {nemotron(R"("hybrid_override_pattern": "M-X")"),
     "c.json: hybrid_override_pattern: unknown layer letter 'X' (known: M, *, -, E)"},
    {nemotron(R"("hybrid_override_pattern": "M-*", "num_hidden_layers": 4)"),
     "c.json: hybrid_override_pattern: 3 entries for 4 layers (one per layer)"},
    {nemotron(R"("num_hidden_layers": 4)"),
     "c.json: hybrid_override_pattern: missing (one of M, *, - and E per layer)"},
    {nemotron(R"("layers_block_type": ["mamba", "conv"])"),
     "c.json: layers_block_type: unknown layer type \"conv\" (known: mamba, attention, mlp, moe)"},
    {nemotron(R"("hybrid_override_pattern": "M", "mamba_num_heads": 12)"),
     "c.json: n_groups: 8 groups do not divide 12 Mamba heads"},
};

TEST(ModelErrors, EveryBadConfigNamesItsKeyAndCause) {
  for (const BadConfig& bad : kBad) {
    const auto model = parse_model_config(bad.text, "c.json");
    ASSERT_FALSE(model.ok()) << bad.text;
    EXPECT_EQ(model.error().message(), bad.message) << bad.text;
  }
}

TEST(ModelErrors, TheUntouchedConfigIsGood) {
  EXPECT_TRUE(parse_model_config(llama_with("x", "1"), "c.json").ok());
  EXPECT_TRUE(parse_model_config(qwen_moe(R"("num_experts": 8, "num_experts_per_tok": 2)"), "c.json").ok());
  EXPECT_TRUE(parse_model_config(deepseek(R"("first_k_dense_replace": 3)"), "c.json").ok());
  EXPECT_TRUE(parse_model_config(nemotron(R"("hybrid_override_pattern": "M-*")"), "c.json").ok());
}

TEST(ModelErrors, UnknownModelTypeListsWhatIsKnown) {
  const auto model = parse_model_config(R"({"model_type": "bert"})", "c.json");
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().where, "c.json: model_type");
  EXPECT_NE(model.error().hint.find("LlamaForCausalLM"), std::string::npos);
  EXPECT_FALSE(parse_model_config("{}", "c.json").ok());
}

TEST(ModelErrors, MissingFileAndFolderWithoutConfig) {
  EXPECT_EQ(read_model_config("/nowhere/config.json").error().message(), "/nowhere/config.json: no such file");
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "empty-folder";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(read_model_config(folder).error().where, (folder / "config.json").string());
}

TEST(ModelErrors, AnOversizedFileIsRefusedUnread) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "huge.json";
  std::ofstream(path).close();
  std::filesystem::resize_file(path, 17 << 20);
  EXPECT_EQ(read_model_config(path).error().problem, "larger than 16 MiB");
  std::filesystem::remove(path);
}

// Deep nesting must not exhaust the stack, in a key that is read and in one that is not.
TEST(ModelErrors, DeepNestingIsHarmless) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_TRUE(parse_model_config(llama_with("x", deep), "c.json").ok());
  EXPECT_FALSE(parse_model_config(llama_with("hidden_size", deep), "c.json").ok());
  EXPECT_FALSE(parse_model_config(std::string(1000000, '['), "c.json").ok());
}

// Each prefix of a config, and each config with one byte changed, is read or refused; nothing escapes.
TEST(ModelErrors, CutOffAndFlippedBytesNeverEscape) {
  const std::string good = deepseek(R"("rope_scaling": {"type": "yarn", "factor": 4}, "q_lora_rank": null)");
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(parse_model_config(good.substr(0, n), "c.json").ok());
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char byte : {'\0', '"', '{', '9', '-', '\xff', 'e'}) {
      std::string damaged = good;
      damaged[i] = byte;
      const auto model = parse_model_config(damaged, "c.json");
      EXPECT_TRUE(model.ok() || !model.error().problem.empty());
    }
  }
}

}  // namespace
}  // namespace fivefold
