// Damaged and unsupported GGUF files: one case per message.
#include <gtest/gtest.h>

#include "store/gguf.h"
#include "store/gguf_model.h"
#include "store/gguf_testing.h"
#include "store/gguf_tokenizer.h"

namespace fivefold {
namespace {

std::string parse_error(const std::string& bytes) {
  const auto file = GgufFile::of_bytes(std::as_bytes(std::span(bytes)), "t.gguf");
  return file.ok() ? "" : file.error().message();
}

template <typename Read>
std::string error_of(const std::string& bytes, Read read) {
  const auto file = GgufFile::of_bytes(std::as_bytes(std::span(bytes)), "t.gguf");
  EXPECT_TRUE(file.ok()) << file.error().message();
  const auto result = read(*file);
  return result.ok() ? "" : result.error().message();
}

const std::string kCut = " (the file is cut off or damaged)";

TEST(GgufErrors, Header) {
  EXPECT_EQ(parse_error(""), "t.gguf: magic: 4 bytes at byte 0 run past the end of the file (0 bytes)" + kCut);
  EXPECT_EQ(parse_error("GGML1234"),
            "t.gguf: does not start with GGUF (not a GGUF file; older GGML files are not read)");
  GgufBytes old;
  old.version = 1;
  EXPECT_EQ(parse_error(old.bytes()), "t.gguf: GGUF version 1 is not read (known: 2 and 3)");
  old.version = 3u << 24;
  EXPECT_EQ(parse_error(old.bytes()), "t.gguf: is big-endian (only little-endian is read)");
  const std::string counts = "GGUF" + little_endian<uint32_t>(3) + little_endian<uint64_t>(UINT64_MAX / 2) +
                             little_endian<uint64_t>(UINT64_MAX) + std::string(40, '\0');
  EXPECT_EQ(
      parse_error(counts),
      "t.gguf: 18446744073709551615 metadata values and 9223372036854775807 tensors do not fit in 64 bytes" + kCut);
}

TEST(GgufErrors, Metadata) {
  EXPECT_EQ(parse_error(GgufBytes().u32("a", 1).u32("a", 2).bytes()), "t.gguf (a): stands twice");
  EXPECT_EQ(parse_error(GgufBytes().raw("a", 13, "x").bytes()), "t.gguf (a): value type 13 is not known");
  EXPECT_EQ(parse_error(GgufBytes().raw("", 4, "1234").bytes()), "t.gguf: a metadata key is empty");
  EXPECT_EQ(parse_error(GgufBytes().raw("\xff", 4, "1234").bytes()), "t.gguf: a metadata key is not UTF-8 text" + kCut);
  const auto array = [](uint32_t element, uint64_t count) {
    return GgufBytes().raw("a", 9, little_endian(element) + little_endian(count)).bytes();
  };
  EXPECT_EQ(parse_error(array(9, 1)), "t.gguf (a): an array of arrays is not read");
  EXPECT_EQ(parse_error(array(10, uint64_t{1} << 61)),
            "t.gguf (a): 2305843009213693952 elements run past the end of the file" + kCut);
  EXPECT_NE(parse_error(array(10, 2)), "");  // fewer than the bytes that are left, but 8 bytes each
  EXPECT_NE(parse_error(GgufBytes().raw("a", 8, little_endian<uint64_t>(UINT64_MAX)).bytes()), "");
  EXPECT_EQ(parse_error(GgufBytes().u32("general.alignment", 24).bytes()),
            "t.gguf (general.alignment): 24 is not a power of two up to 1048576 (usual: 32)");
  EXPECT_EQ(parse_error(GgufBytes().text("general.alignment", "32").bytes()),
            "t.gguf (general.alignment): is not a 32-bit integer");
}

std::string tensor_error(const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
  return parse_error(GgufBytes().describe("w", dims, type, offset).data(std::string(64, '\0')).bytes());
}

TEST(GgufErrors, Tensors) {
  EXPECT_EQ(tensor_error({16}, 0, 0), "");
  EXPECT_EQ(tensor_error({}, 0, 0), "t.gguf (w): has 0 dims, not 1 to 4");
  EXPECT_EQ(tensor_error({1, 1, 1, 1, 1}, 0, 0), "t.gguf (w): has 5 dims, not 1 to 4");
  EXPECT_EQ(tensor_error({4, 0}, 0, 0), "t.gguf (w): dim 0 is not between 1 and 2^63 - 1");
  EXPECT_EQ(tensor_error({uint64_t{1} << 63}, 0, 0),
            "t.gguf (w): dim 9223372036854775808 is not between 1 and 2^63 - 1");
  EXPECT_EQ(tensor_error({16}, 10, 0).substr(0, 60), "t.gguf (w): type 10 (Q2_K) is not read (read are F32, F16, B");
  EXPECT_EQ(tensor_error({48}, 3, 0), "t.gguf (w): rows of 48 values are not whole Q4_1 blocks of 32");
  EXPECT_EQ(tensor_error({uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0), "t.gguf (w): ends beyond 63 bits");
  EXPECT_EQ(tensor_error({1}, 0, uint64_t{INT64_MAX} - 1), "t.gguf (w): ends beyond 63 bits");
  EXPECT_EQ(tensor_error({1}, 0, 4), "t.gguf (w): offset 4 is not a multiple of the alignment 32");
  EXPECT_EQ(tensor_error({16}, 0, 32),
            "t.gguf (w): bytes [32, 96) run past the data of 64 bytes (the download is incomplete)");
  const auto two = GgufBytes().describe("a", {16}, 0, 0).describe("b", {1}, 0, 32).data(std::string(64, '\0')).bytes();
  EXPECT_EQ(parse_error(two), "t.gguf (b): lies over bytes of 'a'");
  const auto twice = GgufBytes().describe("a", {1}, 0, 0).describe("a", {1}, 0, 32).data(std::string(64, '\0')).bytes();
  EXPECT_EQ(parse_error(twice), "t.gguf (a): stands twice");
}

TEST(GgufErrors, EveryLengthOfACutFile) {
  GgufBytes bytes;
  bytes.text("key", "value").texts("list", {"a", "b"}).f32_tensor("w", {2}, {1, 2});
  const std::string whole = bytes.bytes();
  EXPECT_EQ(parse_error(whole), "");
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(parse_error(whole.substr(0, size)), "") << size;
}

GgufBytes llama() {
  GgufBytes bytes;
  bytes.text("general.architecture", "llama").u32("llama.block_count", 1).u32("llama.context_length", 8);
  bytes.u32("llama.embedding_length", 4).u32("llama.feed_forward_length", 2).u32("llama.attention.head_count", 2);
  bytes.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f).f32_tensor("token_embd.weight", {4, 1}, {0, 0, 0, 0});
  return bytes;
}

TEST(GgufErrors, Model) {
  const auto model_error = [](const GgufBytes& bytes) { return error_of(bytes.bytes(), read_gguf_model); };
  EXPECT_EQ(model_error(llama()), "");
  EXPECT_EQ(model_error(GgufBytes().text("general.architecture", "bert")),
            "t.gguf (general.architecture): architecture \"bert\" is not read (read are llama, qwen2, qwen3, gpt2)");
  EXPECT_EQ(model_error(GgufBytes()), "t.gguf: has no 'general.architecture'");
  EXPECT_EQ(model_error(GgufBytes().text("general.architecture", "llama")),
            "t.gguf (token_embd.weight): no such matrix (the file holds no language model)");
  EXPECT_EQ(model_error(llama().u32("split.count", 2)),
            "t.gguf (split.count): the file is one of 2 parts (join them first: llama-gguf-split --merge)");
  EXPECT_EQ(model_error(llama().u32("llama.expert_count", 8)),
            "t.gguf (llama.expert_count): models with experts are not read");
  EXPECT_EQ(
      model_error(llama().u32("llama.rope.dimension_count", 1)),
      "t.gguf (llama.rope.dimension_count): 1 of the 2 dims of a head rotate (only rotation of whole heads is read)");
  EXPECT_EQ(model_error(llama().text("llama.rope.scaling.type", "longrope")),
            "t.gguf (llama.rope.scaling.type): unknown scaling \"longrope\" (known: none, linear, yarn)");
  EXPECT_EQ(model_error(llama().u32("llama.attention.value_length", 4)),
            "t.gguf (llama.attention.value_length): 4 is not the key length 2");
  EXPECT_EQ(model_error(llama().u32("llama.attention.head_count_kv", 3)),
            "t.gguf: num_key_value_heads: 3 kv heads do not divide 2 heads (each kv head serves a whole number of "
            "query heads)");
}

TEST(GgufErrors, Weights) {
  const auto weights_error = [](const GgufBytes& bytes) {
    return error_of(bytes.bytes(),
                    [](const GgufFile& file) { return gguf_weights(file, *read_gguf_model(file), DType::kFloat32); });
  };
  EXPECT_EQ(weights_error(llama()), "t.gguf (blk.0.attn_norm.weight): no such tensor (the model has it)");
  EXPECT_EQ(weights_error(llama().f32_tensor("blk.0.attn_norm.weight", {3}, {1, 2, 3})),
            "t.gguf (blk.0.attn_norm.weight): has the shape [3], not [4] (metadata and tensors contradict each other)");
}

GgufBytes tokenizer() {
  GgufBytes bytes;
  bytes.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2");
  return bytes;
}

TEST(GgufErrors, Tokenizer) {
  const auto error = [](const GgufBytes& bytes) { return error_of(bytes.bytes(), read_gguf_tokenizer); };
  const std::vector<std::string> tokens = {"a", "b"};
  EXPECT_EQ(error(tokenizer().texts("tokenizer.ggml.tokens", tokens).texts("tokenizer.ggml.merges", {})), "");
  EXPECT_EQ(error(GgufBytes().text("tokenizer.ggml.model", "llama")),
            "t.gguf (tokenizer.ggml.model): tokenizer \"llama\" is not read (read is gpt2 (byte-level BPE); take the "
            "tokenizer.json of the model's Hub page)");
  EXPECT_EQ(error(GgufBytes().text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "tekken")).substr(0, 83),
            "t.gguf (tokenizer.ggml.pre): unknown pre-tokenizer \"tekken\" (known: gpt-2, mpt, olm");
  EXPECT_EQ(error(tokenizer()), "t.gguf: has no 'tokenizer.ggml.tokens'");
  EXPECT_EQ(error(tokenizer().texts("tokenizer.ggml.tokens", {"a", "a"})),
            "t.gguf (tokenizer.ggml.tokens): token 1 stands twice: \"a\"");
  EXPECT_EQ(error(tokenizer().texts("tokenizer.ggml.tokens", {"a", "\xff"})),
            "t.gguf (tokenizer.ggml.tokens): entry 1 is not UTF-8");
  EXPECT_EQ(error(tokenizer().texts("tokenizer.ggml.tokens", tokens).i32s("tokenizer.ggml.token_type", {1})),
            "t.gguf (tokenizer.ggml.token_type): has 1 entries for 2 tokens");
  EXPECT_EQ(error(tokenizer()
                      .texts("tokenizer.ggml.tokens", tokens)
                      .texts("tokenizer.ggml.merges", {})
                      .u32("tokenizer.ggml.bos_token_id", 2)),
            "t.gguf (tokenizer.ggml.bos_token_id): token 2 is outside the vocabulary of 2");
  EXPECT_EQ(error(tokenizer().boolean("tokenizer.ggml.add_eos_token", true)),
            "t.gguf (tokenizer.ggml.add_eos_token): an end token after each text is not read");
}

}  // namespace
}  // namespace fivefold
