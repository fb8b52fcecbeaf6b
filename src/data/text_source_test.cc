#include "data/text_source.h"

#include <gtest/gtest.h>

#include "data/temporary_folder.h"
#include "data/token_file.h"
#include "data/utf8.h"

namespace fivefold {
namespace {

using Documents = std::vector<std::string>;

Documents documents(const std::filesystem::path& path, TextFormat format) {
  Documents out;
  const Status status = for_each_document(path, format, [&](std::string_view text) { out.emplace_back(text); });
  EXPECT_TRUE(status.ok()) << status.error().message();
  return out;
}

TEST(TextSource, TextIsOneDocument) {
  const TemporaryFolder folder;
  EXPECT_EQ(documents(folder.write("a", "one\n\ntwo\n"), TextFormat::kText), Documents{"one\n\ntwo\n"});
  EXPECT_EQ(documents(folder.write("b", ""), TextFormat::kText), Documents{});
}

TEST(TextSource, ParagraphsEndAtBlankLines) {
  const TemporaryFolder folder;
  EXPECT_EQ(documents(folder.write("a", "\n one\ntwo\n \t\r\n\nthree\n"), TextFormat::kParagraphs),
            (Documents{" one\ntwo", "three"}));
  EXPECT_EQ(documents(folder.write("b", "one\r\ntwo\r\n\r\nthree"), TextFormat::kParagraphs),
            (Documents{"one\r\ntwo\r", "three"}));
  EXPECT_EQ(documents(folder.write("c", "\n\n"), TextFormat::kParagraphs), Documents{});
}

TEST(TextSource, JsonlHasOneDocumentPerLine) {
  const TemporaryFolder folder;
  const auto path = folder.write("a", R"({"text": "caf\u00e9\n", "id": 1})"
                                      "\n\n"
                                      R"({"text": ""})"
                                      "\r\n"
                                      R"({"id": 2, "text": "two"})");
  EXPECT_EQ(documents(path, TextFormat::kJsonl), (Documents{"caf\xC3\xA9\n", "two"}));
}

TEST(TextSource, FolderIsItsFilesByName) {
  const TemporaryFolder folder;
  folder.write("b", "two");
  folder.write("a", "one");
  std::filesystem::create_directory(folder.path() / "c");
  EXPECT_EQ(documents(folder.path(), TextFormat::kText), (Documents{"one", "two"}));
}

TEST(TokenCache, IsKeyedByContentFormatAndTokenizer) {
  const TemporaryFolder folder;
  const auto bytes = make_byte_tokenizer();
  const auto gpt2 = load_tokenizer(FIVEFOLD_SOURCE_DIR "/src/data/testdata/gpt2.json");
  ASSERT_TRUE(gpt2.ok());
  const auto make = [&](const char* text, TextFormat format, const Tokenizer& tokenizer) {
    const auto path = tokenize_to_cache(folder.write("t.txt", text), format, tokenizer, folder.path() / "cache");
    EXPECT_TRUE(path.ok());
    return *path;
  };
  const auto first = make("a\n\nb", TextFormat::kText, *bytes);
  EXPECT_EQ(make("a\n\nb", TextFormat::kText, *bytes), first);
  EXPECT_NE(make("a\n\nc", TextFormat::kText, *bytes), first);
  EXPECT_NE(make("a\n\nb", TextFormat::kParagraphs, *bytes), first);
  EXPECT_NE(make("a\n\nb", TextFormat::kText, **gpt2), first);
}

TEST(TokenCache, IsUsedAgainAndReplacedWhenDamaged) {
  const TemporaryFolder folder;
  const auto text = folder.write("t.txt", "abc");
  const auto make = [&] { return *tokenize_to_cache(text, TextFormat::kText, *make_byte_tokenizer(), folder.path()); };
  std::filesystem::path bin = make();
  bin += ".bin";
  const auto written = std::filesystem::last_write_time(bin) - std::chrono::hours(1);
  std::filesystem::last_write_time(bin, written);
  make();
  EXPECT_EQ(std::filesystem::last_write_time(bin), written);
  std::filesystem::resize_file(bin, 5);
  EXPECT_TRUE(TokenFile::open(make(), 257).ok());
}

// Bytes and results of the Unicode Standard's examples for maximal subparts (15.0, tables 3-8 to 3-11), and Python's
// bytes.decode("utf-8", "replace").
TEST(Utf8, ReplacesMaximalIllFormedParts) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(to_valid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(to_valid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("caf\xC3\xA9 \xF0\x9F\x99\x82\xE2\x82"), "caf\xC3\xA9 \xF0\x9F\x99\x82" + r);
}

}  // namespace
}  // namespace fivefold
