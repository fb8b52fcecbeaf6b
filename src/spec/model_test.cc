// config.json -> ModelSpec: what each family's keys mean, their defaults, and writing them back.
#include "spec/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "spec/model_named.h"

namespace fivefold {
namespace {

ModelSpec parse(const std::string& text) {
  const auto model = parse_model_config(text, "somewhere/tiny.json");
  EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message());
  return model.ok() ? *model : ModelSpec{};
}

ModelSpec named(const std::string& name) {
  const auto model = read_model_config(*find_named_model(name));
  EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message());
  return *model;
}

// Keys that every Llama-shaped config needs; `more` is appended.
std::string llama(const std::string& more = "", const std::string& architecture = "LlamaForCausalLM") {
  return R"({"architectures": [")" + architecture + R"("], "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256)" +
         (more.empty() ? "" : ", " + more) + "}";
}

std::vector<int64_t> windows(const ModelSpec& model) {
  std::vector<int64_t> all;
  for (const LayerSpec& layer : model.layers) all.push_back(layer.mixer.window);
  return all;
}

TEST(Model, Llama31ReadsInFull) {
  const ModelSpec m = named("llama-3.1-8b");
  EXPECT_EQ(m.name, "llama-3.1-8b");
  EXPECT_EQ(m.architecture, "LlamaForCausalLM");
  EXPECT_EQ(m.hidden, 4096);
  EXPECT_EQ(m.vocab, 128256);
  EXPECT_EQ(m.max_positions, 131072);
  EXPECT_FALSE(m.tied_embeddings);
  EXPECT_EQ(m.stored_dtype, DType::kBFloat16);
  ASSERT_EQ(m.layers.size(), 32u);
  const LayerSpec& layer = m.layers[31];
  EXPECT_EQ(layer.norm.kind, NormKind::kRms);
  EXPECT_EQ(layer.norm.eps, 1e-5);
  EXPECT_EQ(layer.mixer.kind, MixerKind::kAttention);
  EXPECT_EQ(layer.mixer.num_heads, 32);
  EXPECT_EQ(layer.mixer.num_kv_heads, 8);
  EXPECT_EQ(layer.mixer.head_dim, 128);
  EXPECT_EQ(layer.mixer.window, 0);
  EXPECT_FALSE(layer.mixer.qkv_bias || layer.mixer.out_bias || layer.mixer.qk_norm);
  const RopeSpec& rope = layer.mixer.rope;
  EXPECT_EQ(rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(rope.theta, 500000.0);
  EXPECT_EQ(rope.rotary_dim, 128);
  EXPECT_EQ(rope.factor, 8.0);
  EXPECT_EQ(rope.original_max_positions, 8192);
  EXPECT_EQ(layer.mlp.kind, MlpKind::kGated);
  EXPECT_EQ(layer.mlp.activation, Activation::kSilu);
  EXPECT_EQ(layer.mlp.ffn, 14336);
}

TEST(Model, BothSpellingsOfRopeAndDtypeAreEqual) {
  const ModelSpec older =
      parse(llama(R"("rope_theta": 5e5, "torch_dtype": "bfloat16", "rope_scaling": {"type": "llama3",
      "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 512})"));
  const ModelSpec newer =
      parse(llama(R"("dtype": "bfloat16", "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5,
      "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 512})"));
  EXPECT_EQ(older, newer);
  EXPECT_EQ(older.layers[0].mixer.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(older.stored_dtype, DType::kBFloat16);
}

TEST(Model, DefaultsAreThoseOfTheConfigClasses) {
  const ModelSpec m =
      parse(R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                               "intermediate_size": 128, "vocab_size": 256})");
  EXPECT_EQ(m.architecture, "LlamaForCausalLM");  // from model_type
  EXPECT_EQ(m.name, "tiny");
  EXPECT_EQ(m.max_positions, 2048);
  EXPECT_EQ(m.layers[0].mixer.num_kv_heads, 4);  // Llama: as many as heads
  EXPECT_EQ(m.layers[0].mixer.head_dim, 16);
  EXPECT_EQ(m.final_norm.eps, 1e-6);
  EXPECT_EQ(m.layers[0].mixer.rope.theta, 10000.0);
  EXPECT_EQ(m.stored_dtype, DType::kFloat32);
  EXPECT_FALSE(m.tied_embeddings);
  EXPECT_EQ(m.init_std, 0.02);
  const ModelSpec mistral =
      parse(R"({"architectures": ["MistralForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
                                     "num_attention_heads": 16, "intermediate_size": 128, "vocab_size": 256})");
  EXPECT_EQ(mistral.layers[0].mixer.num_kv_heads, 8);  // Mistral: 8
  EXPECT_EQ(mistral.layers[0].mixer.window, 4096);     // and a window, unless null
}

TEST(Model, BiasesFollowTheFamily) {
  const ModelSpec plain = parse(llama()), biased = parse(llama(R"("attention_bias": true, "mlp_bias": true)"));
  EXPECT_FALSE(plain.layers[0].mixer.qkv_bias || plain.layers[0].mixer.out_bias || plain.layers[0].mlp.bias);
  EXPECT_TRUE(biased.layers[0].mixer.qkv_bias && biased.layers[0].mixer.out_bias && biased.layers[0].mlp.bias);
  const MixerSpec qwen2 = parse(llama("", "Qwen2ForCausalLM")).layers[0].mixer;
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.out_bias && !qwen2.qk_norm);
  const MixerSpec qwen3 = parse(llama("", "Qwen3ForCausalLM")).layers[0].mixer;
  EXPECT_TRUE(!qwen3.qkv_bias && !qwen3.out_bias && qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);  // Qwen3's default, not hidden / heads
}

TEST(Model, Gpt2IsLayerNormLearnedPositionsPlainMlp) {
  const ModelSpec m = named("gpt2");
  EXPECT_TRUE(m.learned_positions && m.tied_embeddings);
  EXPECT_EQ(m.naming, "gpt2");
  EXPECT_EQ(m.final_norm.kind, NormKind::kLayer);
  EXPECT_TRUE(m.final_norm.bias);
  EXPECT_FALSE(m.layers[0].mixer.has_rope);
  EXPECT_TRUE(m.layers[0].mixer.qkv_bias && m.layers[0].mixer.out_bias && m.layers[0].mlp.bias);
  EXPECT_EQ(m.layers[0].mlp.kind, MlpKind::kPlain);
  EXPECT_EQ(m.layers[0].mlp.activation, Activation::kGeluTanh);
  EXPECT_EQ(m.layers[0].mlp.ffn, 3072);
}

TEST(Model, WindowsFollowEachFamilysRule) {
  using V = std::vector<int64_t>;
  EXPECT_EQ(windows(parse(llama(R"("sliding_window": 32)", "MistralForCausalLM"))), (V{32, 32, 32, 32}));
  EXPECT_EQ(windows(parse(llama(R"("sliding_window": null)", "MistralForCausalLM"))), (V{0, 0, 0, 0}));
  // Qwen: off unless use_sliding_window, then from max_window_layers on.
  EXPECT_EQ(windows(parse(llama(R"("sliding_window": 32, "max_window_layers": 1)", "Qwen2ForCausalLM"))),
            (V{0, 0, 0, 0}));
  EXPECT_EQ(windows(parse(llama(R"("use_sliding_window": true, "sliding_window": 32, "max_window_layers": 1)",
                                "Qwen2ForCausalLM"))),
            (V{0, 32, 32, 32}));
  EXPECT_EQ(
      windows(parse(llama(R"("use_sliding_window": true, "sliding_window": 32, "layer_types": ["sliding_attention",
                                   "full_attention", "full_attention", "sliding_attention"])",
                          "Qwen3ForCausalLM"))),
      (V{32, 0, 0, 32}));
  // gpt-oss: every other layer, the first included. Gemma 3: all but every sixth.
  const V oss = windows(named("gpt-oss-20b"));
  EXPECT_EQ(oss[0], 128);
  EXPECT_EQ(oss[1], 0);
  const V gemma = windows(named("gemma-3-1b"));
  EXPECT_EQ((V{gemma.begin(), gemma.begin() + 7}), (V{512, 512, 512, 512, 512, 0, 512}));
}

TEST(Model, PartialRotaryFactorInBothSpellings) {
  EXPECT_EQ(parse(llama(R"("partial_rotary_factor": 0.5)")).layers[0].mixer.rope.rotary_dim, 8);
  EXPECT_EQ(parse(llama(R"("rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25})"))
                .layers[0]
                .mixer.rope.rotary_dim,
            4);
}

TEST(Model, YarnFactorComesFromTheLengthsWhenAbsent) {
  const RopeSpec rope = parse(llama(R"("max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn",
      "original_max_position_embeddings": 1024})"))
                            .layers[0]
                            .mixer.rope;
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_TRUE(rope.truncate);
}

TEST(Model, QwenMoeLayersFollowStepAndDenseList) {
  const std::string moe = R"("num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32)";
  const auto kinds = [](const ModelSpec& m) {
    std::string text;
    for (const LayerSpec& layer : m.layers) text += layer.mlp.kind == MlpKind::kMoe ? 'E' : '-';
    return text;
  };
  EXPECT_EQ(kinds(parse(llama(moe, "Qwen3MoeForCausalLM"))), "EEEE");
  EXPECT_EQ(kinds(parse(llama(moe + R"(, "decoder_sparse_step": 2)", "Qwen3MoeForCausalLM"))), "-E-E");
  EXPECT_EQ(kinds(parse(llama(moe + R"(, "mlp_only_layers": [0, 2])", "Qwen3MoeForCausalLM"))), "-E-E");
  EXPECT_FALSE(parse(llama(moe, "Qwen3MoeForCausalLM")).layers[0].mlp.normalize_weights);
}

TEST(Model, DeepSeekV3HasLatentAttentionAndDenseFirstLayers) {
  const ModelSpec m = named("deepseek-v3");
  EXPECT_EQ(m.num_mtp_layers, 1);
  ASSERT_EQ(m.layers.size(), 61u);
  EXPECT_EQ(m.layers[2].mlp.kind, MlpKind::kGated);
  const MlpSpec& experts = m.layers[3].mlp;
  EXPECT_EQ(experts.kind, MlpKind::kMoe);
  EXPECT_EQ(experts.router, RouterKind::kSigmoid);
  EXPECT_TRUE(experts.router_correction_bias && experts.normalize_weights);
  EXPECT_EQ(experts.expert_groups, 8);
  EXPECT_EQ(experts.groups_per_token, 4);
  EXPECT_EQ(experts.shared_ffn, 2048);
  EXPECT_EQ(experts.routed_scaling, 2.5);
  const MixerSpec& mixer = m.layers[0].mixer;
  EXPECT_EQ(mixer.kind, MixerKind::kLatentAttention);
  EXPECT_EQ(mixer.rope.rotary_dim, 64);
  EXPECT_TRUE(mixer.rope.interleaved);
  // mscale_all_dim 1, factor 40: (0.1 ln 40 + 1)^2 / sqrt(192) = 1.3688879^2 / 13.8564065.
  EXPECT_NEAR(mixer.softmax_scale, 0.1352337, 1e-6);
}

TEST(Model, Gemma3HasTwoRopesAndFourNorms) {
  const ModelSpec m = named("gemma-3-27b");
  EXPECT_TRUE(m.tied_embeddings && m.final_norm.weight_plus_one);
  EXPECT_NEAR(m.embedding_scale, 73.3212, 1e-3);  // sqrt(5376)
  const LayerSpec &local = m.layers[0], &global = m.layers[5];
  EXPECT_TRUE(local.pre_norm && local.post_norm && local.mixer.qk_norm);
  EXPECT_EQ(local.mixer.rope.theta, 10000.0);
  EXPECT_EQ(local.mixer.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(global.mixer.rope.theta, 1000000.0);
  EXPECT_EQ(global.mixer.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(global.mixer.rope.factor, 8.0);
  EXPECT_NEAR(local.mixer.softmax_scale, 0.0771517, 1e-6);  // 1 / sqrt(168)
}

TEST(Model, Gemma3TextModelIsFoundInTheMultimodalConfig) {
  // As published for 4B: what equals the defaults of the text config is left out.
  const ModelSpec m = parse(R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
      "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152}, "text_config": {"hidden_size": 2560,
      "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
      "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}})");
  ModelSpec expected = named("gemma-3-4b");
  expected.name = m.name;
  EXPECT_EQ(m, expected);
}

TEST(Model, HybridsMixTheirLayers) {
  const ModelSpec next = named("qwen3-next-80b-a3b");
  EXPECT_EQ(next.layers[2].mixer.kind, MixerKind::kLinearAttention);
  const MixerSpec& attention = next.layers[3].mixer;
  EXPECT_EQ(attention.kind, MixerKind::kAttention);
  EXPECT_TRUE(attention.output_gate && attention.qk_norm);
  EXPECT_EQ(attention.rope.rotary_dim, 64);                     // a quarter of 256
  const ModelSpec nemotron = named("nemotron-3-nano-30b-a3b");  // MEMEM*E...
  EXPECT_EQ(nemotron.layers[0].mixer.kind, MixerKind::kMamba2);
  EXPECT_EQ(nemotron.layers[0].mlp.kind, MlpKind::kNone);
  EXPECT_EQ(nemotron.layers[1].mlp.kind, MlpKind::kMoe);
  EXPECT_FALSE(nemotron.layers[1].mlp.expert_gated);
  EXPECT_EQ(nemotron.layers[1].mlp.activation, Activation::kReluSquared);
  EXPECT_EQ(nemotron.layers[5].mixer.kind, MixerKind::kAttention);
  EXPECT_FALSE(nemotron.layers[5].mixer.has_rope);
  EXPECT_TRUE(nemotron.layers[0].single_norm);
}

TEST(Model, NemotronLayersBlockTypeSaysTheSameAsThePattern) {
  const std::string sizes = R"("architectures": ["NemotronHForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
      "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256)";
  const ModelSpec pattern = parse("{" + sizes + R"(, "hybrid_override_pattern": "M-*")" + "}");
  const ModelSpec list = parse("{" + sizes + R"(, "layers_block_type": ["mamba", "mlp", "attention"])" + "}");
  EXPECT_EQ(pattern, list);
}

// Python's json module writes bare Infinity and NaN; Nemotron-H-56B's published config has one.
TEST(Model, PythonLiteralsAreRead) {
  const ModelSpec m =
      parse(llama(R"("time_step_limit": [0.0, Infinity], "x": -Infinity, "y": NaN, "z": "NaN \" Infinity")"));
  EXPECT_EQ(m.hidden, 64);
}

TEST(Model, NameIsNameOrPathElseFileElseFolder) {
  EXPECT_EQ(parse(llama(R"("_name_or_path": "org/My-Model")")).name, "My-Model");
  EXPECT_EQ(parse_model_config(llama(), "a/my-model.json")->name, "my-model");
  EXPECT_EQ(parse_model_config(llama(), "a/my-model/config.json")->name, "my-model");
}

TEST(Model, EveryNamedModelSurvivesWritingAndReading) {
  ASSERT_GE(list_named_models().size(), 55u);
  for (const std::string& name : list_named_models()) {
    const ModelSpec model = named(name);
    const auto again = parse_model_config(write_model_config(model), "elsewhere.json");
    ASSERT_TRUE(again.ok()) << name << ": " << again.error().message();
    EXPECT_EQ(*again, model) << name << write_model_config(model);
  }
}

TEST(Model, UnusualConfigsSurviveWritingAndReading) {
  const std::string moe = R"("num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32)";
  const std::vector<std::string> configs = {
      llama(
          R"("attention_bias": true, "mlp_bias": true, "head_dim": 32, "tie_word_embeddings": true, "hidden_act": "gelu")"),
      llama(R"("partial_rotary_factor": 0.5, "rope_scaling": {"type": "dynamic", "factor": 2.0})"),
      llama(
          R"("rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "truncate": false,
               "attention_factor": 1.5, "beta_fast": 16})"),
      llama(R"("sliding_window": 7)", "MistralForCausalLM"),
      llama(R"("use_sliding_window": true, "sliding_window": 9, "max_window_layers": 2)", "Qwen2ForCausalLM"),
      llama(R"("use_sliding_window": true, "sliding_window": 9, "max_window_layers": 3)", "Qwen3ForCausalLM"),
      llama(moe + R"(, "mlp_only_layers": [1])", "Qwen3MoeForCausalLM"),
      llama(moe + R"(, "use_sliding_window": true, "sliding_window": 9)", "Qwen2MoeForCausalLM"),
      llama(moe + R"(, "mlp_only_layers": [0], "full_attention_interval": 2, "partial_rotary_factor": 1.0)",
            "Qwen3NextForCausalLM"),
      // Without a layer of full attention nothing is written of its heads.
      llama(moe + R"(, "full_attention_interval": 64)", "Qwen3NextForCausalLM"),
      R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 144, "n_inner": 100,
          "activation_function": "gelu", "tie_word_embeddings": false})"};
  for (const std::string& config : configs) {
    const ModelSpec model = parse(config);
    const auto again = parse_model_config(write_model_config(model), "elsewhere.json");
    ASSERT_TRUE(again.ok()) << again.error().message();
    EXPECT_EQ(*again, model) << write_model_config(model);
  }
}

TEST(Model, FolderStandsForItsConfigJson) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "tiny-llama";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << llama();
  const auto model = read_model_config(folder);
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_EQ(model->name, "tiny-llama");
}

}  // namespace
}  // namespace fivefold
