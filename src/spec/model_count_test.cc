#include "spec/model_count.h"

#include <gtest/gtest.h>

#include "spec/inventory.h"
#include "spec/model_named.h"

namespace fivefold {
namespace {

ModelSpec named(const std::string& name) {
  const auto path = find_named_model(name);
  EXPECT_TRUE(path.ok()) << (path.ok() ? "" : path.error().message());
  const auto model = read_model_config(*path);
  EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message());
  return *model;
}

struct PublishedCount {
  const char* model;
  int64_t parameters;
  const char* source;
};

constexpr const char* kHubTotal = "safetensors parameter total on the model's Hub page";
constexpr const char* kHubIndex = "total_size of model.safetensors.index.json / 2 bytes (bf16 or fp16)";
constexpr const char* kKeras = "params of the preset's metadata in keras-team/keras-hub";
constexpr const char* kGguf = "n_params that llama.cpp counts in the GGUF file";
constexpr const char* kOllama = "general.parameter_count of the model in the Ollama library";

// Exact counts as others published them. Where the Hub's total is of a file with extra copies (Qwen3-0.6B stores the
// tied head twice, Gemma 3 has a vision tower, DeepSeek-V3 has multi-token prediction), the figure is for the text
// model alone.
const PublishedCount kPublished[] = {
    {"llama-2-7b", 6738415616, kHubTotal},
    {"llama-2-13b", 13015864320, kHubTotal},
    {"llama-2-70b", 68976648192, "AuroraGPT-70B performance study (argonne-lcf): TOTAL_PARAMS; together: llama-2-70b"},
    {"llama-3-8b", 8030261248, kHubIndex},
    {"llama-3-70b", 70553706496, kHubTotal},
    {"llama-3.1-8b", 8030261248, kHubIndex},
    {"llama-3.1-70b", 70553706496, kHubTotal},
    {"llama-3.1-405b", 405853388800, kHubTotal},
    {"llama-3.2-1b", 1235814400, kHubTotal},
    {"llama-3.2-3b", 3212749824, kHubTotal},
    {"tinyllama-1.1b", 1100048384, kHubTotal},
    {"smollm2-135m", 134515008, kHubTotal},
    {"smollm2-360m", 361821120, kHubTotal},
    {"smollm2-1.7b", 1711376384, kHubTotal},
    {"mistral-7b-v0.1", 7241732096, kHubIndex},
    {"mistral-7b-v0.3", 7248023552, kHubTotal},
    {"qwen2-0.5b", 494032768, kHubTotal},
    {"qwen2-1.5b", 1543714304, kHubTotal},
    {"qwen2-7b", 7615616512, kHubTotal},
    {"qwen2-72b", 72706203648, kHubTotal},
    {"qwen2.5-0.5b", 494032768, kHubTotal},
    {"qwen2.5-1.5b", 1543714304, kHubTotal},
    {"qwen2.5-3b", 3085938688, kKeras},
    {"qwen2.5-7b", 7615616512, kHubIndex},
    {"qwen2.5-14b", 14770033664, kGguf},
    {"qwen2.5-32b", 32763876352, kHubTotal},
    {"qwen2.5-72b", 72706203648, kKeras},
    {"qwen3-0.6b", 596049920, kKeras},
    {"qwen3-1.7b", 1720574976, kKeras},
    {"qwen3-4b", 4022468096, kHubTotal},
    {"qwen3-8b", 8190735360, kHubIndex},
    {"qwen3-14b", 14768307200, kHubTotal},
    {"qwen3-32b", 32762123264, kHubTotal},
    {"gpt2", 124439808, kKeras},
    {"gpt2-medium", 354823168, kKeras},
    {"gpt2-large", 774030080, kKeras},
    {"gpt2-xl", 1557611200, kKeras},
    {"mixtral-8x7b", 46702792704, kHubTotal},
    {"mixtral-8x22b", 140620634112, kHubTotal},
    {"qwen3-30b-a3b", 30532122624, kHubTotal},
    {"qwen3-235b-a22b", 235093634560, kHubTotal},
    {"qwen1.5-moe-a2.7b", 14315784192, kKeras},
    {"qwen2-57b-a14b", 57408658944, kHubTotal},
    {"gpt-oss-20b", 20914757184, kOllama},
    {"gpt-oss-120b", 116829156672, kOllama},
    {"deepseek-v2-lite", 15706484224, kHubTotal},
    {"deepseek-v2", 235741434880, kHubTotal},
    {"deepseek-v3", 671026419200, "671B of the README; every tensor of the 61 layers, correction bias included"},
    {"gemma-3-1b", 999885952, kHubTotal},
    {"gemma-3-4b", 3880263168, kGguf},
    {"gemma-3-12b", 11766034176, kGguf},
    {"gemma-3-27b", 27009346304, kGguf},
    {"qwen3-next-80b-a3b", 79674391296, "params of Qwen3-Next's GGUF and of Qwen3-Coder-Next, which shares its shape"},
    {"nemotron-3-nano-30b-a3b", 31577940288, kGguf},
    // No exact figure was found in print: parameters of the model that transformers 5.24.0 builds from this config.
    {"nemotron-h-8b", 8100852736, "transformers 5.24.0 on the meta device"},
    {"nemotron-h-56b", 56324350464, "transformers 5.24.0 on the meta device"},
};

TEST(ModelCount, EqualsPublishedCountsToTheParameter) {
  for (const PublishedCount& published : kPublished)
    EXPECT_EQ(count_parameters(named(published.model)), published.parameters)
        << published.model << ": " << published.source;
}

TEST(ModelCount, InventoryAgreesForEveryNamedModel) {
  for (const std::string& name : list_named_models()) {
    const ModelSpec model = named(name);
    EXPECT_EQ(build_inventory(model).num_parameters(), count_parameters(model)) << name;
  }
}

TEST(ModelCount, ActiveParametersLeaveOutUnusedExperts) {
  // Published: Qwen3-30B-A3B 3.35e9 and Mixtral-8x7B 12.88e9 (both with embedding and head).
  EXPECT_EQ(count_active_parameters(named("qwen3-30b-a3b")), 3353032704);
  EXPECT_EQ(count_active_parameters(named("mixtral-8x7b")), 12879925248);
  // DeepSeek-V3's report: 37 B activated. By hand: the total minus 58 layers x 248 unused experts x 3 x 7168 x 2048.
  EXPECT_EQ(count_active_parameters(named("deepseek-v3")), 671026419200 - int64_t{58} * 248 * 3 * 7168 * 2048);
  // gpt-oss's model card: 3.61 B and 5.13 B active, which leave the token table out.
  const ModelSpec small = named("gpt-oss-20b"), large = named("gpt-oss-120b");
  EXPECT_NEAR(static_cast<double>(count_active_parameters(small) - count_embedding_parameters(small)), 3.61e9, 5e6);
  EXPECT_NEAR(static_cast<double>(count_active_parameters(large) - count_embedding_parameters(large)), 5.13e9, 5e6);
}

TEST(ModelCount, DenseModelsAreWhollyActive) {
  for (const char* name : {"llama-3.1-8b", "gpt2", "gemma-3-1b"})
    EXPECT_EQ(count_active_parameters(named(name)), count_parameters(named(name))) << name;
}

TEST(ModelCount, EmbeddingsAreTheTablesThatAreLookedUp) {
  EXPECT_EQ(count_embedding_parameters(named("llama-3.1-8b")), int64_t{128256} * 4096);
  EXPECT_EQ(count_embedding_parameters(named("gpt2")), (50257 + 1024) * 768);
}

TEST(ModelCount, LayerOfLlama8BByHand) {
  // q, o: 2 x 4096^2; k, v: 2 x 4096 x 1024; gate, up, down: 3 x 4096 x 14336; two norms of 4096.
  const ModelSpec model = named("llama-3.1-8b");
  EXPECT_EQ(count_layer_parameters(model.layers[0], model.hidden),
            2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096);
}

// The `parameters` that transformers counts in each tiny model of the numerical references.
struct TinyModel {
  const char* config;
  int64_t parameters;
};
const TinyModel kTiny[] = {
    {R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128})",
     54000},
    {R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
         "intermediate_size": 64, "vocab_size": 131, "tie_word_embeddings": true})",
     35136},
    {R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 160})",
     51464},
    {R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 128, "tie_word_embeddings": true})",
     55152},
    {R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 144,
         "n_positions": 32})",
     65088},
    {R"({"architectures": ["MixtralForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2,
         "vocab_size": 128})",
     51616},
    {R"({"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64, "moe_intermediate_size": 24,
         "num_local_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [1], "vocab_size": 128})",
     70464},
    // 61,272 parameters and the correction bias of 2 layers x 8 experts, which transformers keeps as a buffer.
    {R"({"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
         "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
         "intermediate_size": 64, "moe_intermediate_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 2,
         "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "vocab_size": 128})",
     61272 + 16},
};

TEST(ModelCount, EqualsTransformersOnTinyModels) {
  for (const TinyModel& tiny : kTiny) {
    const auto model = parse_model_config(tiny.config, "config.json");
    ASSERT_TRUE(model.ok()) << model.error().message();
    EXPECT_EQ(count_parameters(*model), tiny.parameters) << tiny.config;
  }
}

}  // namespace
}  // namespace fivefold
