// GGUF files written here, through parser, model and Hub folder. The published file is tested in
// cli/gguf_conversion_test.cc, where its tokenizer can be run too.
#include "store/gguf.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "store/gguf_folder.h"
#include "store/gguf_model.h"
#include "store/gguf_testing.h"
#include "store/gguf_tokenizer.h"
#include "store/hub_folder.h"
#include "store/test_files.h"

namespace fivefold {
namespace {

GgufFile opened(const std::string& bytes) {
  auto file = GgufFile::of_bytes(std::as_bytes(std::span(bytes)), "t.gguf");
  EXPECT_TRUE(file.ok()) << file.error().message();
  return std::move(file).value();
}

TEST(Gguf, MetadataOfEveryType) {
  GgufBytes bytes;
  bytes.raw("u8", 0, "\xff").raw("i8", 1, "\xff").raw("u16", 2, "\xff\xff").raw("i16", 3, "\xfe\xff");
  bytes.u32("u32", 4294967295u).raw("i32", 5, little_endian<int32_t>(-7)).f32("f32", 1e-5f).boolean("yes", true);
  bytes.text("text", "caf\xC3\xA9").raw("u64", 10, little_endian<uint64_t>(5));
  bytes.raw("i64", 11, little_endian<int64_t>(-1)).raw("f64", 12, little_endian(0.1)).texts("list", {"a", "", "b c"});
  bytes.i32s("numbers", {3, -4}).raw("large", 10, little_endian<uint64_t>(uint64_t{1} << 63));
  const std::string text = bytes.bytes();
  const GgufFile file = opened(text);
  EXPECT_EQ(*file.integer("u8"), 255);
  EXPECT_EQ(*file.integer("i8"), -1);
  EXPECT_EQ(*file.integer("u16"), 65535);
  EXPECT_EQ(*file.integer("i16"), -2);
  EXPECT_EQ(*file.integer("u32"), 4294967295);
  EXPECT_EQ(*file.integer("i32"), -7);
  EXPECT_EQ(*file.integer("u64"), 5);
  EXPECT_EQ(*file.integer("i64"), -1);
  EXPECT_EQ(*file.number("f32"), 1e-5);  // not 9.9999997e-06
  EXPECT_EQ(*file.number("f64"), 0.1);
  EXPECT_EQ(*file.number("u8"), 255.0);
  EXPECT_TRUE(*file.boolean("yes"));
  EXPECT_EQ(*file.text("text"), "caf\xC3\xA9");
  EXPECT_EQ(*file.texts("list"), (std::vector<std::string>{"a", "", "b c"}));
  EXPECT_EQ(*file.integers("numbers"), (std::vector<int64_t>{3, -4}));
  EXPECT_EQ(file.integer("large").error().message(), "t.gguf (large): is not an integer below 2^63");
  EXPECT_EQ(file.integer("list").error().message(), "t.gguf (list): is a list, not one value");
  EXPECT_EQ(file.text("u8").error().message(), "t.gguf (u8): is not text");
  EXPECT_EQ(file.integer("none").error().message(), "t.gguf: has no 'none'");
  EXPECT_EQ(*file.integer_or("none", 8), 8);
}

TEST(Gguf, TensorsByShapeAndRow) {
  GgufBytes bytes;
  bytes.f32_tensor("a", {3, 2}, {1, 2, 3, 4, 5, 6}).f32_tensor("b", {1}, {7});
  const std::string text = bytes.bytes();
  const GgufFile file = opened(text);
  ASSERT_EQ(file.tensors().size(), 2U);
  const GgufTensor& a = *file.find("a");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.find("b")->begin, 32);  // 24 bytes, then the next multiple of 32
  std::vector<float> row(3);
  file.read_rows(a, 1, 1, row);
  EXPECT_EQ(row, (std::vector<float>{4, 5, 6}));
  EXPECT_EQ(file.find("c"), nullptr);
}

// A Llama of one layer: hidden 4, one head of 4, ffn 2, vocabulary 3. Matrices count up from a start of their own.
std::vector<float> counted(size_t count, float start) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), start);
  return values;
}

GgufBytes small_llama() {
  GgufBytes bytes;
  bytes.text("general.architecture", "llama").text("general.name", "small").u32("llama.block_count", 1);
  bytes.u32("llama.context_length", 64).u32("llama.embedding_length", 4).u32("llama.feed_forward_length", 2);
  bytes.u32("llama.attention.head_count", 1).f32("llama.attention.layer_norm_rms_epsilon", 1e-6f);
  bytes.f32("llama.rope.freq_base", 500000.0f);
  bytes.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "smollm");
  bytes.texts("tokenizer.ggml.tokens", {"a", "ab", "<end>"}).i32s("tokenizer.ggml.token_type", {1, 1, 3});
  bytes.texts("tokenizer.ggml.merges", {}).u32("tokenizer.ggml.eos_token_id", 2);
  bytes.text("tokenizer.chat_template", "{{ messages }}");
  bytes.f32_tensor("token_embd.weight", {4, 3}, counted(12, 0)).f32_tensor("output_norm.weight", {4}, counted(4, 90));
  bytes.f32_tensor("blk.0.attn_norm.weight", {4}, counted(4, 80))
      .f32_tensor("blk.0.ffn_norm.weight", {4}, counted(4, 70));
  bytes.f32_tensor("blk.0.attn_q.weight", {4, 4}, counted(16, 100))
      .f32_tensor("blk.0.attn_k.weight", {4, 4}, counted(16, 200));
  bytes.f32_tensor("blk.0.attn_v.weight", {4, 4}, counted(16, 300));
  bytes.f32_tensor("blk.0.attn_output.weight", {4, 4}, counted(16, 400));
  bytes.f32_tensor("blk.0.ffn_gate.weight", {4, 2}, counted(8, 500))
      .f32_tensor("blk.0.ffn_up.weight", {4, 2}, counted(8, 600));
  bytes.f32_tensor("blk.0.ffn_down.weight", {2, 4}, counted(8, 700));
  return bytes;
}

std::vector<float> hub_floats(const HubFolder& hub, const char* name) {
  const auto tensor = hub.tensor(name);
  EXPECT_TRUE(tensor.ok()) << tensor.error().message();
  std::vector<float> values(tensor->bytes.size() / 4);
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

TEST(Gguf, HubFolderOfASmallLlama) {
  const TempFolder folder;
  const std::string text = small_llama().bytes();
  const auto done = write_gguf_as_hub_folder(opened(text), folder.path(), DType::kFloat32, {});
  ASSERT_TRUE(done.ok()) << done.error().message();
  const auto model = read_model_config(folder.path());
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_EQ(model->hidden, 4);
  EXPECT_EQ(model->max_positions, 64);
  EXPECT_TRUE(model->tied_embeddings);  // the file has no output.weight
  EXPECT_EQ(model->layers.at(0).mixer.rope.theta, 500000.0);
  EXPECT_EQ(model->layers.at(0).mixer.num_kv_heads, 1);  // as heads, when the file does not say
  EXPECT_EQ(model->final_norm.eps, 1e-6);

  const auto hub = HubFolder::open(folder.path());
  ASSERT_TRUE(hub.ok()) << hub.error().message();
  EXPECT_EQ(hub->names().size(), 11U);
  // One head of 4: rows 0, 1 on the Hub are rows 0, 2 of the file, rows 2, 3 are rows 1, 3.
  EXPECT_EQ(hub_floats(*hub, "model.layers.0.self_attn.q_proj.weight"),
            (std::vector<float>{100, 101, 102, 103, 108, 109, 110, 111, 104, 105, 106, 107, 112, 113, 114, 115}));
  EXPECT_EQ(hub_floats(*hub, "model.layers.0.self_attn.k_proj.weight")[4], 208);
  EXPECT_EQ(hub_floats(*hub, "model.layers.0.self_attn.v_proj.weight"), counted(16, 300));
  EXPECT_EQ(hub_floats(*hub, "model.layers.0.self_attn.o_proj.weight"), counted(16, 400));
  EXPECT_EQ(hub_floats(*hub, "model.layers.0.mlp.gate_proj.weight"), counted(8, 500));
  EXPECT_EQ(hub_floats(*hub, "model.layers.0.mlp.up_proj.weight"), counted(8, 600));
  EXPECT_EQ(hub_floats(*hub, "model.layers.0.mlp.down_proj.weight"), counted(8, 700));
  EXPECT_EQ(hub_floats(*hub, "model.layers.0.input_layernorm.weight"), counted(4, 80));
  EXPECT_EQ(hub_floats(*hub, "model.layers.0.post_attention_layernorm.weight"), counted(4, 70));
  EXPECT_EQ(hub_floats(*hub, "model.norm.weight"), counted(4, 90));
  EXPECT_EQ(hub_floats(*hub, "model.embed_tokens.weight"), counted(12, 0));

  const auto config = nlohmann::json::parse(read_file(folder / "config.json"));
  EXPECT_EQ(config.at("eos_token_id"), 2);
  EXPECT_EQ(config.at("torch_dtype"), "float32");
  EXPECT_FALSE(config.contains("bos_token_id"));
  const auto tokenizer = nlohmann::json::parse(read_file(folder / "tokenizer.json"));
  EXPECT_EQ(tokenizer.at("model").at("vocab"), (nlohmann::json{{"a", 0}, {"ab", 1}, {"<end>", 2}}));
  EXPECT_EQ(tokenizer.at("added_tokens").size(), 1U);
  EXPECT_EQ(tokenizer.at("pre_tokenizer").at("pretokenizers").at(0).at("type"), "Digits");
  const auto tokenizer_config = nlohmann::json::parse(read_file(folder / "tokenizer_config.json"));
  EXPECT_EQ(tokenizer_config.at("chat_template"), "{{ messages }}");
  EXPECT_EQ(tokenizer_config.at("eos_token"), "<end>");
}

// bf16 rounds to nearest even: 257 = 1.00000001b x 2^8 lies halfway between 256 and 258; 256 is even.
TEST(Gguf, Bfloat16OnRequest) {
  const TempFolder folder;
  const std::string text = small_llama().bytes();
  ASSERT_TRUE(write_gguf_as_hub_folder(opened(text), folder.path(), DType::kBFloat16, {}).ok());
  const auto hub = HubFolder::open(folder.path());
  const auto tensor = hub->tensor("model.layers.0.self_attn.v_proj.weight");  // 300 to 315
  uint16_t first;
  std::memcpy(&first, tensor->bytes.data() + 2, 2);  // 301 = 1.001011010b x 2^8: between 300 and 302, 300 is even
  EXPECT_EQ(first, 0x4396);                          // 300 = 1.0010110b x 2^8
}

// GPT-2 stores its linears [in, out] on the Hub and [out, in] in GGUF, and has no pairs to put in order.
TEST(Gguf, Gpt2IsTransposed) {
  GgufBytes bytes;
  bytes.text("general.architecture", "gpt2").u32("gpt2.block_count", 1).u32("gpt2.context_length", 5);
  bytes.u32("gpt2.embedding_length", 2).u32("gpt2.feed_forward_length", 3).u32("gpt2.attention.head_count", 1);
  bytes.f32("gpt2.attention.layer_norm_epsilon", 1e-5f);
  bytes.f32_tensor("token_embd.weight", {2, 3}, counted(6, 0))
      .f32_tensor("position_embd.weight", {2, 5}, counted(10, 10));
  for (const char* norm : {"blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"}) {
    bytes.f32_tensor(norm + std::string(".weight"), {2}, counted(2, 30));
    bytes.f32_tensor(norm + std::string(".bias"), {2}, counted(2, 40));
  }
  bytes.f32_tensor("blk.0.attn_qkv.weight", {2, 6}, counted(12, 100))
      .f32_tensor("blk.0.attn_qkv.bias", {6}, counted(6, 50));
  bytes.f32_tensor("blk.0.attn_output.weight", {2, 2}, counted(4, 200))
      .f32_tensor("blk.0.attn_output.bias", {2}, counted(2, 60));
  bytes.f32_tensor("blk.0.ffn_up.weight", {2, 3}, counted(6, 300)).f32_tensor("blk.0.ffn_up.bias", {3}, counted(3, 70));
  bytes.f32_tensor("blk.0.ffn_down.weight", {3, 2}, counted(6, 400))
      .f32_tensor("blk.0.ffn_down.bias", {2}, counted(2, 80));
  const std::string text = bytes.bytes();
  const GgufFile file = opened(text);
  const auto model = read_gguf_model(file);
  ASSERT_TRUE(model.ok()) << model.error().message();
  const auto weights = gguf_weights(file, *model, DType::kFloat32);
  ASSERT_TRUE(weights.ok()) << weights.error().message();
  std::map<std::string, std::vector<float>> values;
  for (const GgufWeight& weight : *weights)
    for_each_portion(file, weight, [&](std::span<const float> portion) {
      values[weight.hub.name].insert(values[weight.hub.name].end(), portion.begin(), portion.end());
    });
  EXPECT_EQ(values.at("transformer.h.0.attn.c_attn.weight"),
            (std::vector<float>{100, 102, 104, 106, 108, 110, 101, 103, 105, 107, 109, 111}));
  EXPECT_EQ(values.at("transformer.h.0.attn.c_attn.bias"), counted(6, 50));
  EXPECT_EQ(values.at("transformer.h.0.mlp.c_fc.weight"), (std::vector<float>{300, 302, 304, 301, 303, 305}));
  EXPECT_EQ(values.at("transformer.h.0.mlp.c_proj.weight"), (std::vector<float>{400, 403, 401, 404, 402, 405}));
  EXPECT_EQ(values.at("transformer.wpe.weight"), counted(10, 10));
  EXPECT_EQ(values.at("transformer.h.0.ln_2.bias"), counted(2, 40));
}

// The divisors of Llama 3.2 (factor 32) for heads of 64: pairs that turn within 8192 / 4 positions are left alone,
// those slower than 8192 / 1 are divided by 32. theta 500,000: pair i turns once in 2 pi 500000^(i / 32) positions,
// which is 1,930 at 13.96..., so pair 13 (1,299 positions) has 1 and pair 18 (10,099) has 32.
TEST(Gguf, FrequencyDivisorsOfLlama3) {
  std::vector<float> divisors(32);
  for (size_t i = 0; i < 32; ++i) {
    const double length = 2 * M_PI * std::pow(500000.0, static_cast<double>(i) / 32), smooth = (8192 / length - 1) / 3;
    divisors[i] = static_cast<float>(length < 2048 ? 1 : length > 8192 ? 32 : 1 / ((1 - smooth) / 32 + smooth));
  }
  EXPECT_EQ(divisors[13], 1);
  EXPECT_EQ(divisors[18], 32);
  const auto with = [&](const std::vector<float>& values) {
    GgufBytes bytes;
    bytes.text("general.architecture", "llama").u32("llama.block_count", 1).u32("llama.context_length", 131072);
    bytes.u32("llama.embedding_length", 64).u32("llama.feed_forward_length", 2).u32("llama.attention.head_count", 1);
    bytes.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f).f32("llama.rope.freq_base", 500000.0f);
    bytes.f32_tensor("token_embd.weight", {64, 1}, counted(64, 0)).f32_tensor("rope_freqs.weight", {32}, values);
    return bytes.bytes();
  };
  const std::string good = with(divisors);
  const auto model = read_gguf_model(opened(good));
  ASSERT_TRUE(model.ok()) << model.error().message();
  const RopeSpec& rope = model->layers[0].mixer.rope;
  EXPECT_EQ(rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(rope.factor, 32);
  EXPECT_EQ(rope.original_max_positions, 8192);
  divisors[16] *= 1.01f;
  const std::string bad = with(divisors);
  EXPECT_EQ(
      read_gguf_model(opened(bad)).error().message(),
      "t.gguf (rope_freqs.weight): scales frequencies by no rule that is known (known: that of Llama 3.1 to 3.3)");
}

TEST(Gguf, LlamaBpePutsBosBeforeTexts) {
  GgufBytes bytes;
  bytes.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "llama-bpe");
  bytes.texts("tokenizer.ggml.tokens", {"a", "<b>"}).texts("tokenizer.ggml.merges", {});
  bytes.u32("tokenizer.ggml.bos_token_id", 1);
  const std::string text = bytes.bytes();
  const auto tokenizer = read_gguf_tokenizer(opened(text));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  const auto json = nlohmann::json::parse(tokenizer->tokenizer_json);
  EXPECT_EQ(json.at("post_processor").at("type"), "TemplateProcessing");
  EXPECT_EQ(json.at("post_processor").at("special_tokens").at("<b>").at("ids"), nlohmann::json::array({1}));
  EXPECT_TRUE(json.at("model").at("ignore_merges").get<bool>());
}

}  // namespace
}  // namespace fivefold
