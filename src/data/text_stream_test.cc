#include "data/text_stream.h"

#include <gtest/gtest.h>

#include <string>

#include "data/utf8.h"

namespace fivefold {
namespace {

// Latin, Greek, Chinese, an emoji of four bytes, a decomposed accent, a zero-width joiner, spaces at all places.
const std::string kText = " Grüße, κόσμε!  训练一个大模型 🚢👩‍🚀 é\n\t end ";

struct Pieces {
  std::string text;
  bool whole_characters = true;
  int most_at_once = 0;  // characters of a piece
};

Pieces stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  TextStream stream(tokenizer);
  Pieces pieces;
  for (const int32_t id : ids) {
    const std::string piece = stream.push(id);
    pieces.whole_characters = pieces.whole_characters && to_valid_utf8(piece) == piece;
    int characters = 0;
    for (const char c : piece) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    pieces.most_at_once = std::max(pieces.most_at_once, characters);
    pieces.text += piece;
  }
  pieces.text += stream.finish();
  return pieces;
}

TEST(TextStream, BytesBecomeCharactersOneByOne) {
  const auto tokenizer = make_byte_tokenizer();
  const Pieces pieces = stream(*tokenizer, tokenizer->encode(kText));
  EXPECT_EQ(pieces.text, kText);
  EXPECT_TRUE(pieces.whole_characters);
  EXPECT_EQ(pieces.most_at_once, 1);
}

// One after the other, the pieces of every kind of tokenizer are what decode() gives for all tokens.
TEST(TextStream, PiecesAreTheWholeText) {
  const std::string folder = FIVEFOLD_SOURCE_DIR "/src/data/testdata/";
  for (const char* name : {"gpt2", "llama2", "llama3", "metaspace", "metaspace_split", "qwen2", "gpt2_prefix"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = load_tokenizer(folder + name + ".json").value();
    for (const Specials specials : {Specials::kOmit, Specials::kAdd}) {
      const std::vector<int32_t> ids = tokenizer->encode(kText, specials);
      const Pieces pieces = stream(*tokenizer, ids);
      EXPECT_EQ(pieces.text, tokenizer->decode(ids));
      EXPECT_TRUE(pieces.whole_characters);
    }
  }
}

TEST(TextStream, AnOpenCharacterIsShownAtTheEnd) {
  const auto tokenizer = make_byte_tokenizer();
  TextStream stream(*tokenizer);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push(0x82), "");
  EXPECT_EQ(stream.finish(), "\xE2\x82");
  // What cannot become a character does not hold up what follows.
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push('b'),
            "\xE2"
            "b");
}

// Llama 2's first word loses its space; a word after a prompt keeps it.
TEST(TextStream, KnowsWhatStoodBefore) {
  const auto tokenizer = load_tokenizer(FIVEFOLD_SOURCE_DIR "/src/data/testdata/llama2.json").value();
  const std::vector<int32_t> ids = tokenizer->encode("a b");
  ASSERT_GE(ids.size(), 2u);
  const std::vector<int32_t> before(ids.begin(), ids.end() - 1);
  TextStream stream(*tokenizer, before);
  EXPECT_EQ(tokenizer->decode(before) + stream.push(ids.back()), "a b");
}

}  // namespace
}  // namespace fivefold
