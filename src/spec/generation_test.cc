#include "spec/generation.h"

#include <gtest/gtest.h>

#include "spec/validate_test_models.h"

namespace fivefold {
namespace {

using test::dense_model;
using test::expert_model;

std::vector<std::string> problems(const ModelSpec& model, const GenerationShape& shape) {
  std::vector<std::string> texts;
  for (const Error& error : validate_generation(model, shape)) texts.push_back(error.message());
  return texts;
}

// SmolLM2-135M: 134,515,008 parameters, every one a multiple of 256 elements long but the norms (576 = 2.25 x 256, in
// the buffer 768). A layer's two norms and the last one: 61 x 192 elements of padding, save behind the last parameter
// of a layer's buffer, which is counted too. Keys and values of a position: 30 layers x 2 x 3 heads x 64 elements.
TEST(Generation, BytesOfWeightsAndCache) {
  const ModelSpec model = parse_model_config(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": true})",
                                             "smollm2")
                              .value();
  const GenerationBytes bytes =
      generation_bytes(model, build_inventory(model), {.prompt = 100, .new_tokens = 28, .compute = DType::kBFloat16});
  EXPECT_EQ(bytes.params, 2 * (134515008 + 61 * 192));
  EXPECT_EQ(bytes.kv_cache, int64_t{30} * 2 * 3 * 64 * 128 * 2);
  const GenerationBytes wide =
      generation_bytes(model, build_inventory(model), {.prompt = 100, .new_tokens = 28, .compute = DType::kFloat32});
  EXPECT_EQ(wide.params, 2 * bytes.params);
  EXPECT_EQ(wide.kv_cache, 2 * bytes.kv_cache);
}

TEST(Generation, PositionsAreThoseOfTheModel) {
  ModelSpec model = dense_model();
  model.max_positions = 64;
  EXPECT_TRUE(problems(model, {.prompt = 60, .new_tokens = 4}).empty());
  EXPECT_EQ(
      problems(model, {.prompt = 60, .new_tokens = 5}),
      (std::vector<std::string>{"--max-tokens: 5 tokens after a prompt of 60 are more than the 64 positions of the "
                                "model (use --max-tokens 4)"}));
  EXPECT_EQ(problems(model, {.prompt = 64, .new_tokens = 1}),
            (std::vector<std::string>{"--prompt: has 64 tokens, which leaves no room in the 64 positions of the model "
                                      "(use 63 tokens or fewer)"}));
  EXPECT_EQ(problems(model, {.prompt = 0, .new_tokens = 0}).size(), 2u);
  // A sum beyond int64_t is none.
  EXPECT_EQ(problems(model, {.prompt = 60, .new_tokens = INT64_MAX}).size(), 1u);
}

TEST(Generation, AttentionWindowsEndTheSequence) {
  ModelSpec model = dense_model();
  model.max_positions = 64;
  model.layers[1].mixer.window = 32;
  EXPECT_TRUE(problems(model, {.prompt = 30, .new_tokens = 2}).empty());
  EXPECT_EQ(
      problems(model, {.prompt = 30, .new_tokens = 3}),
      (std::vector<std::string>{"--max-tokens: 3 tokens after a prompt of 30 are more than the 32 tokens of the "
                                "model's attention window, at which the engine does not cut (use --max-tokens 2)"}));
}

TEST(Generation, ModelsThatTheEngineDoesNotRun) {
  ASSERT_EQ(problems(expert_model(), {.prompt = 1, .new_tokens = 1}).size(), 1u);
  EXPECT_NE(problems(expert_model(), {.prompt = 1, .new_tokens = 1})[0].find("does not run experts"),
            std::string::npos);
}

}  // namespace
}  // namespace fivefold
