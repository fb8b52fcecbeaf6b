#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include "data/regex.h"
#include "data/temporary_folder.h"

namespace fivefold {
namespace {

using Ids = std::vector<int32_t>;

TEST(ByteTokenizer, IsTheBytes) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eos_id(), 256);
  EXPECT_EQ(tokenizer->encode("a\xC3\xA9\xFF"), (Ids{0x61, 0xC3, 0xA9, 0xFF}));
  EXPECT_EQ(tokenizer->decode(Ids{0x61, 256, 0xFF, 999, -1}), "a\xFF");
  EXPECT_EQ(tokenizer->decode(Ids{0x61, 256}, Specials::kAdd), "a<eos>");
}

const std::string kModel =
    R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3,"bc":4,"abc":5},"merges":["b c","a b","ab c"]})";
const std::string kAdded = R"("added_tokens":[{"id":7,"content":"<end>","special":true}])";

std::unique_ptr<Tokenizer> parse(const std::string& json, const std::string& config = "") {
  auto tokenizer = parse_tokenizer_json(json, config, "t");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  return std::move(*tokenizer);
}

// "b c" comes first: a|bc has no further merge ("a bc" is none), though "ab c" would make one token.
TEST(HubTokenizer, MergesByRankNotByLength) {
  EXPECT_EQ(parse("{" + kModel + "}")->encode("abc"), (Ids{0, 4}));
  EXPECT_EQ(parse("{" + kModel + "}")->encode("abab"), (Ids{3, 3}));
  EXPECT_EQ(parse("{" + kModel + "}")->encode("xay"), (Ids{0}));  // no unk token: unknown characters vanish
}

TEST(HubTokenizer, NumbersHolesAndEos) {
  const auto tokenizer =
      parse("{" + kModel + "," + kAdded + "}", R"({"eos_token":{"content":"<end>"},"bos_token":null})");
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_EQ(tokenizer->eos_id(), 7);
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer->encode("ab<end>"), (Ids{3, 7}));
  EXPECT_EQ(tokenizer->decode(Ids{3, 6, 7, 8, -1}), "ab");  // 6 is a hole, 8 and -1 are beyond
  ASSERT_EQ(tokenizer->special_tokens().size(), 1U);
  EXPECT_EQ(tokenizer->special_tokens()[0].content, "<end>");
  EXPECT_EQ(parse("{" + kModel + "," + kAdded + "}")->eos_id(), std::nullopt);  // not one of the usual names
}

TEST(HubTokenizer, TakesTheLongestAddedToken) {
  const auto tokenizer = parse("{" + kModel +
                               R"(,"added_tokens":[{"id":6,"content":"<x"},{"id":7,"content":"<x>"},)"
                               R"({"id":8,"content":"<x>>"},{"id":9,"content":"x>a"}]})");
  EXPECT_EQ(tokenizer->encode("<x>>a<x>a<xa"), (Ids{8, 0, 7, 0, 6, 0}));  // the leftmost before the longest
}

TEST(HubTokenizer, ReadsTheConfigurationBesideTheFile) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", "{" + kModel + "," + kAdded + "}");
  folder.write("tokenizer_config.json", R"({"eos_token":"<end>"})");
  const auto tokenizer = load_tokenizer(folder.path().string());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ((*tokenizer)->eos_id(), 7);
}

TEST(HubTokenizer, FingerprintFollowsTheFile) {
  EXPECT_EQ(parse("{" + kModel + "}")->fingerprint(), parse("{" + kModel + "}")->fingerprint());
  EXPECT_NE(parse("{" + kModel + "}")->fingerprint(), parse("{" + kModel + "," + kAdded + "}")->fingerprint());
}

// 2^17 characters "abab...": one word of n log n merges.
TEST(HubTokenizer, EncodesOneLongWord) {
  std::string text;
  for (int i = 0; i < 1 << 16; ++i) text += "ab";
  EXPECT_EQ(parse("{" + kModel + "}")->encode(text), Ids(1 << 16, 3));
}

TEST(HubTokenizer, ReplacesWhatIsNotUtf8) {
  const std::string json = R"({"model":{"type":"BPE","vocab":{"a":0,"�":1},"merges":[]}})";
  EXPECT_EQ(parse(json)->encode("a\xFF\xE2\x82"
                                "a"),
            (Ids{0, 1, 1, 0}));
}

std::vector<std::pair<size_t, size_t>> find(const char* pattern, const char* text) {
  return Regex::compile(pattern, "").value().find_all(text);
}

// Note [Oniguruma and PCRE2] in regex.cc.
TEST(Regex, MeansWhatOnigurumaMeans) {
  using Ranges = std::vector<std::pair<size_t, size_t>>;
  EXPECT_EQ(find(R"(\s+)", "a \t\xC2\x85\xE1\xA0\x8E"), (Ranges{{1, 5}}));    // not U+180E
  EXPECT_EQ(find(R"([\s!]+)", "!\xE1\xA0\x8E !"), (Ranges{{0, 1}, {4, 6}}));  // nor in a class
  EXPECT_EQ(find(R"(\S+)", "a\xE1\xA0\x8E b"), (Ranges{{0, 4}, {5, 6}}));
  EXPECT_EQ(find(R"(\p{Han}+)", "\xE4\xB8\xAD\xE3\x80\x81"), (Ranges{{0, 3}}));  // not the ideographic comma
  EXPECT_EQ(find(R"(\p{Lu}|\p{^L})", "aB1"), (Ranges{{1, 2}, {2, 3}}));
  EXPECT_EQ(find("^a", "a\na"), (Ranges{{0, 1}, {2, 3}}));
  EXPECT_EQ(find(R"([]a\]]+[[:digit:]]*)", "]a12"), (Ranges{{0, 4}}));
  EXPECT_EQ(find("x*", "aax\xC3\xA9"), (Ranges{{2, 3}}));  // no empty matches
  EXPECT_FALSE(Regex::compile("[a&&b]", "").ok());
  EXPECT_FALSE(Regex::compile("[a[bc]]", "").ok());
}

}  // namespace
}  // namespace fivefold
