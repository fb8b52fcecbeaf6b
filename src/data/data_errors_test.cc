// Wrong token files, texts and tokenizer.json: each gives the documented error and nothing else happens.
#include <gtest/gtest.h>

#include <functional>

#include "data/dataset.h"
#include "data/index_bytes.h"
#include "data/temporary_folder.h"

namespace fivefold {
namespace {

// --- token files: what is wrong with a good pair of two documents (3 and 2 tokens, uint16), and the problem reported.
struct TokenFileRow {
  const char* name;
  const char* problem;
  std::function<void(IndexBytes&)> fields = [](IndexBytes&) {};  // damage to the index's fields,
  std::function<void(std::string& index, std::string& bin)> bytes = [](std::string&, std::string&) {};  // to the bytes
};

const TokenFileRow kTokenFileRows[] = {
    {"Magic", "does not start with MMIDIDX", [](IndexBytes& f) { f.magic = std::string("MMIDIDY\0\0", 9); }},
    {"Version", "version 2 is not known", [](IndexBytes& f) { f.version = 2; }},
    {"TypeZero", "unknown element type 0", [](IndexBytes& f) { f.type = 0; }},
    {"TypeNine", "unknown element type 9", [](IndexBytes& f) { f.type = 9; }},
    {"TypeFloat", "element type 6 is floating point, not token ids", [](IndexBytes& f) { f.type = 6; }},
    {"TypeOther", "sequence 0 (3 tokens at byte 0) lies outside the 10 bytes", [](IndexBytes& f) { f.type = 5; }},
    {"LengthNegative", "sequence 1 has length -1", [](IndexBytes& f) { f.lengths[1] = -1; }},
    {"LengthTooLong", "sequence 1 (3 tokens at byte 6) lies outside", [](IndexBytes& f) { f.lengths[1] = 3; }},
    {"LengthTooShort", "has 10 bytes, the index describes 8", [](IndexBytes& f) { f.lengths[1] = 1; }},
    {"LengthHuge", "sequence 0 (2147483647 tokens at byte 0)", [](IndexBytes& f) { f.lengths[0] = INT32_MAX; }},
    {"PointerNegative", "sequence 1 (2 tokens at byte -2) lies outside", [](IndexBytes& f) { f.pointers[1] = -2; }},
    {"PointerBeyond", "lies outside the 10 bytes", [](IndexBytes& f) { f.pointers[1] = INT64_MAX - 1; }},
    {"PointerUnaligned", "sequence 1 (2 tokens at byte 5) lies outside", [](IndexBytes& f) { f.pointers[1] = 5; }},
    {"DocumentsEmpty", "the document index is empty", [](IndexBytes& f) { f.documents.clear(); }},
    {"DocumentsStart", "document 0 starts at sequence 1, outside [0, 0]", [](IndexBytes& f) { f.documents[0] = 1; }},
    {"DocumentsFall", "document 2 starts at sequence 1, outside [2, 2]",
     [](IndexBytes& f) { f.documents = {0, 2, 1}; }},
    {"DocumentsBeyond", "document 2 starts at sequence 3, outside [1, 2]", [](IndexBytes& f) { f.documents[2] = 3; }},
    {"DocumentsShort", "the documents end at sequence 1 of 2", [](IndexBytes& f) { f.documents[2] = 1; }},
    {.name = "IndexEmpty",
     .problem = "has 0 bytes, a header has 34",
     .bytes = [](auto& index, auto&) { index.clear(); }},
    {.name = "IndexHeaderCut",
     .problem = "has 33 bytes, a header has 34",
     .bytes = [](auto& index, auto&) { index.resize(33); }},
    {.name = "IndexCut",
     .problem = "2 sequences and 3 document entries need another",
     .bytes = [](auto& index, auto&) { index.pop_back(); }},
    {.name = "IndexLonger",
     .problem = "2 sequences and 3 document entries need another",
     .bytes = [](auto& index, auto&) { index += '\0'; }},
    {.name = "SequencesHuge",
     .problem = "18446744073709551615 sequences",
     .bytes = [](auto& index, auto&) { index.replace(18, 8, 8, '\xFF'); }},
    {.name = "DocumentCountHuge",
     .problem = "18446744073709551615 document",
     .bytes = [](auto& index, auto&) { index.replace(26, 8, 8, '\xFF'); }},
    {.name = "BinCut",
     .problem = "sequence 1 (2 tokens at byte 6) lies outside the 9 bytes",
     .bytes = [](auto&, auto& bin) { bin.pop_back(); }},
    {.name = "BinEmpty",
     .problem = "sequence 0 (3 tokens at byte 0) lies outside the 0 bytes",
     .bytes = [](auto&, auto& bin) { bin.clear(); }},
    {.name = "BinLonger",
     .problem = "has 11 bytes, the index describes 10",
     .bytes = [](auto&, auto& bin) { bin += '\0'; }},
    {.name = "IdBeyondVocabulary",
     .problem = "document 1, token 1: id 100 is outside",
     .bytes = [](auto&, auto& bin) { bin[8] = 100; }},
};

TEST(DataErrors, TokenFiles) {
  for (const TokenFileRow& row : kTokenFileRows) {
    const TemporaryFolder folder;
    IndexBytes fields{.lengths = {3, 2}, .pointers = {0, 6}, .documents = {0, 1, 2}};
    row.fields(fields);
    std::string index = fields.bytes(), bin("\1\0\2\0\3\0\4\0\5\0", 10);
    row.bytes(index, bin);
    folder.write("x.idx", index);
    folder.write("x.bin", bin);
    const auto file = TokenFile::open(folder.path() / "x", 100);
    const Status status = file.ok() ? file->check_ids() : Status(file.error());
    ASSERT_FALSE(status.ok()) << row.name;
    EXPECT_NE(status.error().problem.find(row.problem), std::string::npos)
        << row.name << ": " << status.error().message();
    EXPECT_NE(status.error().where.find("/x."), std::string::npos) << row.name;
  }
}

TEST(DataErrors, TokenFileMissing) {
  const TemporaryFolder folder;
  EXPECT_FALSE(TokenFile::open(folder.path() / "x", 10).ok());
  folder.write("x.idx", IndexBytes{.documents = {0}}.bytes());
  EXPECT_FALSE(TokenFile::open(folder.path() / "x", 10).ok());
  folder.write("x.bin", "");
  EXPECT_TRUE(TokenFile::open(folder.path() / "x", 10).ok());
  EXPECT_FALSE(TokenFile::open(folder.path() / "x", 0).ok());
  std::filesystem::remove(folder.path() / "x.bin");
  std::filesystem::create_directory(folder.path() / "x.bin");
  EXPECT_FALSE(TokenFile::open(folder.path() / "x", 10).ok());
}

// Any byte of the index flipped, and any cut: an error or a file that can be read to its end.
TEST(DataErrors, DamagedIndexNeverReadsOutside) {
  const TemporaryFolder folder;
  const std::string good = IndexBytes{.lengths = {3, 2}, .pointers = {0, 6}, .documents = {0, 1, 2}}.bytes();
  folder.write("x.bin", std::string("\1\0\2\0\3\0\4\0\5\0", 10));
  const auto expect_safe = [&](const std::string& index) {
    folder.write("x.idx", index);
    const auto file = TokenFile::open(folder.path() / "x", 65536);
    if (file.ok()) {
      EXPECT_TRUE(file->check_ids().ok());
    }
  };
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int mask : {0x01, 0x80, 0xFF}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ mask);
      expect_safe(bad);
    }
    expect_safe(good.substr(0, i));
  }
}

// --- texts
struct TextRow {
  const char* text;
  TextFormat format;
  const char* message;  // after the folder's name
};

TEST(DataErrors, Texts) {
  const char* hint = R"( (each line is one object, {"text": "..."}))";
  const TextRow rows[] = {
      {"{\"text\": \"a\"}\n{\"text\": \"b\"", TextFormat::kJsonl, "t:2: is not JSON in UTF-8"},
      {"{\"text\": \"a\"}\n\nplain text\n", TextFormat::kJsonl, "t:3: is not JSON in UTF-8"},
      {"{\"text\": \"\xFF\"}", TextFormat::kJsonl, "t:1: is not JSON in UTF-8"},
      {"[\"text\"]\n", TextFormat::kJsonl, "t:1: is not a JSON object"},
      {"{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", TextFormat::kJsonl, "t:2: has no key \"text\""},
      {"{\"text\": 1}\n", TextFormat::kJsonl, "t:1: \"text\" is not a string"},
      {"{\"text\": null}\n", TextFormat::kJsonl, "t:1: \"text\" is not a string"},
      {"{\"text\": \"\"}\n", TextFormat::kJsonl, "t: holds no text"},
      {"", TextFormat::kText, "t: holds no text"},
      {"\n \n", TextFormat::kParagraphs, "t: holds no text"},
  };
  for (const TextRow& row : rows) {
    const TemporaryFolder folder;
    const auto path = folder.write("t", row.text);
    const auto made = tokenize_to_cache(path, row.format, *make_byte_tokenizer(), folder.path() / "cache");
    ASSERT_FALSE(made.ok()) << row.text;
    std::string expected = folder.path().string() + "/" + row.message;
    if (!made.error().hint.empty()) expected += hint;
    EXPECT_EQ(made.error().message(), expected);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "cache"));  // nothing half-made stays
  }
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_FALSE(tokenize_to_cache(folder.path() / "missing", TextFormat::kText, *tokenizer, folder.path()).ok());
  const auto empty = tokenize_to_cache(folder.path(), TextFormat::kText, *tokenizer, folder.path() / "cache");
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.error().problem, "the folder holds no files");
  const auto unknown = open_dataset({.source = folder.path(), .format = "jsonlines", .sequence = 1}, *tokenizer);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().message(), "data.format: unknown format \"jsonlines\" (did you mean jsonl?)");
}

// --- tokenizer.json
struct TokenizerRow {
  std::string json;
  const char* message;
};

std::string with_model(const std::string& model) { return R"({"model":)" + model + "}"; }
std::string with(const std::string& more) {
  return R"({"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]},)" + more + "}";
}
std::string nested(const char* open, const char* close, int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += R"({"type":"NFC"})";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

// A Sequence of `count` equal components.
std::string sequence(const std::string& key, const std::string& component, int count) {
  std::string parts = component;
  for (int i = 1; i < count; ++i) parts += "," + component;
  return R"({"type":"Sequence",")" + key + "\":[" + parts + "]}";
}

std::string doublings(const std::string& key, int count) {
  return sequence(key, R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})", count);
}

TEST(DataErrors, TokenizerJson) {
  const TokenizerRow rows[] = {
      {"", "t: is not JSON"},
      {R"({"model":)", "t: is not JSON"},
      {"[]", "t: is not an object"},
      {"{}", "t: has no \"model\""},
      {with_model("3"), "t.model: is not an object"},
      {with_model(R"({"type":"WordPiece","vocab":{}})"),
       "t.model.type: unsupported model type \"WordPiece\" (only BPE is supported)"},
      {with_model(R"({"type":"Unigram","vocab":[]})"),
       "t.model.type: unsupported model type \"Unigram\" (only BPE is supported)"},
      {with_model(R"({"vocab":{"a":0}})"), "t.model.type: unsupported model type \"\" (only BPE is supported)"},
      {with_model(R"({"type":"BPE","merges":[]})"), "t.model: has no \"vocab\""},
      {with_model(R"({"type":"BPE","vocab":["a"],"merges":[]})"), "t.model.vocab: is not an object of token: id"},
      {with_model(R"({"type":"BPE","vocab":{},"merges":[]})"), "t.model.vocab: is empty"},
      {with_model(R"({"type":"BPE","vocab":{"a":"0"},"merges":[]})"),
       "t.model.vocab: \"a\" has an id that is not an integer"},
      {with_model(R"({"type":"BPE","vocab":{"a":0,"b":0},"merges":[]})"),
       "t.model.vocab: \"a\" and \"b\" both have id 0"},
      {with_model(R"({"type":"BPE","vocab":{"a":-1},"merges":[]})"),
       "t.model.vocab: \"a\" has id -1, outside [0, 2^24)"},
      {with_model(R"({"type":"BPE","vocab":{"a":16777216},"merges":[]})"),
       "t.model.vocab: \"a\" has id 16777216, outside [0, 2^24)"},
      {with_model(R"({"type":"BPE","vocab":{"a":18446744073709551615},"merges":[]})"),
       "t.model.vocab: \"a\" has id 18446744073709551615, outside [0, 2^24)"},
      {with_model(R"({"type":"BPE","vocab":{"a":0}})"), "t.model: has no \"merges\""},
      {with_model(R"({"type":"BPE","vocab":{"a":0},"merges":["a"]})"),
       "t.model.merges[0]: is neither \"left right\" nor [\"left\", \"right\"]"},
      {with_model(R"({"type":"BPE","vocab":{"a":0},"merges":[["a"]]})"),
       "t.model.merges[0]: is neither \"left right\" nor [\"left\", \"right\"]"},
      {with_model(R"({"type":"BPE","vocab":{"a":0},"merges":["a z"]})"),
       "t.model.merges[0]: \"z\" is not in the vocabulary"},
      {with_model(R"({"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]})"),
       "t.model.merges[0]: \"ab\" is not in the vocabulary"},
      {with_model(R"({"type":"BPE","vocab":{"a":0},"merges":[],"unk_token":"u"})"),
       "t.model.unk_token: \"u\" is not in the vocabulary"},
      {with_model(R"({"type":"BPE","vocab":{"a":0},"merges":[],"fuse_unk":1})"),
       "t.model.fuse_unk: is not true or false"},
      {with_model(R"({"type":"BPE","vocab":{"a":0},"merges":[],"end_of_word_suffix":"</w>"})"),
       "t.model.end_of_word_suffix: is not supported"},
      {with_model(R"({"type":"BPE","vocab":{"a":0},"merges":[],"dropout":0.1})"),
       "t.model.dropout: is not supported: encoding would not be repeatable (set it to null)"},
      {with(R"("normalizer":{"type":"Lowercase"})"),
       "t.normalizer: unsupported normalizer \"Lowercase\" (supported: NFC, NFD, NFKC, NFKD, Prepend, Replace, "
       "Sequence)"},
      {with(R"("normalizer":[])"), "t.normalizer: is not an object"},
      {with(R"("normalizer":{"type":"Replace","pattern":{"String":""},"content":""})"),
       "t.normalizer.pattern.String: is empty"},
      {with("\"normalizer\":" + nested(R"({"type":"Sequence","normalizers":[)", "]}", 20)), nullptr},
      {with("\"normalizer\":" + nested(R"({"type":"Sequence","normalizers":[)", "]}", 20000)),
       "t: is nested deeper than 64 levels"},
      {with("\"added_tokens\":" + nested("[", "]", 200000)), "t: is nested deeper than 64 levels"},
      // 13 doublings: 8192.
      {with("\"normalizer\":" + doublings("normalizers", 13)),
       "t.normalizer: can make a text 8.19e+03 times longer, over 4096 (use fewer components, or shorter "
       "replacements)"},
      {with("\"decoder\":" + doublings("decoders", 40)),
       "t.decoder: can make a text 1.1e+12 times longer, over 4096 (use fewer components, or shorter replacements)"},
      // Each byte becomes a character of two bytes, seven times after a space was put before it: 4^7.
      {with("\"pre_tokenizer\":" + sequence("pretokenizers", R"({"type":"ByteLevel"})", 7)),
       "t.pre_tokenizer: can make a text 1.64e+04 times longer, over 4096 (use fewer components, or shorter "
       "replacements)"},
      {with(R"("pre_tokenizer":{"type":"Whitespace"})"),
       "t.pre_tokenizer: unsupported pre-tokenizer \"Whitespace\" (supported: ByteLevel, Split, Digits, Metaspace, "
       "Sequence)"},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"a("},"behavior":"Isolated"})"),
       "t.pre_tokenizer.pattern.Regex: regular expression a(: missing closing parenthesis at 2"},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"a[b"},"behavior":"Isolated"})"),
       "t.pre_tokenizer.pattern.Regex: regular expression a[b: missing terminating ] for character class at 3"},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\"},"behavior":"Isolated"})"),
       "t.pre_tokenizer.pattern.Regex: regular expression \\: \\ at end of pattern at 1"},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"a\\C"},"behavior":"Isolated"})"),
       "t.pre_tokenizer.pattern.Regex: regular expression a\\C: using \\C is disabled by the application at 3"},
      {with(R"("pre_tokenizer":{"type":"Split","behavior":"Isolated"})"), "t.pre_tokenizer: has no \"pattern\""},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Kept"})"),
       "t.pre_tokenizer.behavior: unknown behavior \"Kept\" (known: Removed, Isolated, MergedWithPrevious, "
       "MergedWithNext, Contiguous)"},
      {with(R"("pre_tokenizer":{"type":"Metaspace","replacement":"ab"})"),
       "t.pre_tokenizer.replacement: is not one character"},
      {with(R"("pre_tokenizer":{"type":"Metaspace","prepend_scheme":"last"})"),
       "t.pre_tokenizer.prepend_scheme: unknown scheme \"last\" (known: always, first, never)"},
      {with(R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"X"}]})"),
       "t.pre_tokenizer.pretokenizers[0]: unsupported pre-tokenizer \"X\" (supported: ByteLevel, Split, Digits, "
       "Metaspace, Sequence)"},
      {with(R"("decoder":{"type":"WordPiece"})"),
       "t.decoder: unsupported decoder \"WordPiece\" (supported: ByteLevel, ByteFallback, Fuse, Strip, Metaspace, "
       "Replace, Sequence)"},
      {with(R"("decoder":{"type":"Strip","content":" ","start":-1})"), "t.decoder: \"start\" or \"stop\" is negative"},
      {with(R"("post_processor":{"type":"BertProcessing"})"),
       "t.post_processor: unsupported post-processor \"BertProcessing\" (supported: ByteLevel, TemplateProcessing, "
       "RobertaProcessing, Sequence)"},
      {with(
           R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{}}]})"),
       "t.post_processor.single: \"<s>\" is not a token"},
      {with(R"("post_processor":{"type":"TemplateProcessing","single":[]})"),
       "t.post_processor.single: holds the text 0 times, not once"},
      {with(R"("post_processor":{"type":"RobertaProcessing","cls":["<s>",0],"sep":["b",1]})"),
       "t.post_processor.cls: \"<s>\" is not a token"},
      {with(R"("added_tokens":{})"), "t.added_tokens: is not an array"},
      {with(R"("added_tokens":[{"content":"x"}])"), "t.added_tokens[0]: has no \"id\""},
      {with(R"("added_tokens":[{"id":2.5,"content":"x"}])"), "t.added_tokens[0].id: is not an integer"},
      {with(R"("added_tokens":[{"id":-1,"content":"x"}])"), "t.added_tokens[0].id: -1 is outside [0, 2^24)"},
      {with(R"("added_tokens":[{"id":2,"content":""}])"), "t.added_tokens[0].content: is empty"},
      {with(R"("added_tokens":[{"id":1,"content":"x"}])"), "t.added_tokens: \"b\" and \"x\" both have id 1"},
      {with(R"("added_tokens":[{"id":2,"content":"a"}])"), "t.added_tokens: \"a\" has id 2 here and 0 in the model"},
      {with(R"("added_tokens":[{"id":2,"content":"x"},{"id":2,"content":"y"}])"),
       "t.added_tokens: \"x\" and \"y\" both have id 2"},
  };
  for (const TokenizerRow& row : rows) {
    const auto tokenizer = parse_tokenizer_json(row.json, "", "t");
    ASSERT_FALSE(tokenizer.ok()) << row.json.substr(0, 200);
    if (row.message != nullptr) {
      EXPECT_EQ(tokenizer.error().message(), row.message);
    } else {
      EXPECT_EQ(tokenizer.error().problem, "sequences are nested too deeply");
    }
  }
}

// The growth that is refused is the largest that can happen: twelve doublings are taken, and happen.
TEST(DataErrors, TokenizerGrowthBelowTheLimitIsTaken) {
  const auto tokenizer = parse_tokenizer_json(with("\"normalizer\":" + doublings("normalizers", 12)), "", "t");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ((*tokenizer)->encode("a").size(), 4096U);
}

// Ids may have holes of any size: memory follows the tokens, not the largest id.
TEST(DataErrors, TokenizerWithALargeIdIsSmall) {
  const auto tokenizer =
      parse_tokenizer_json(with_model(R"({"type":"BPE","vocab":{"a":16777215,"b":3},"merges":[]})"), "", "t");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ((*tokenizer)->vocab_size(), 16777216);
  EXPECT_EQ((*tokenizer)->decode((*tokenizer)->encode("ab")), "a b");  // no decoder: joined by spaces
  EXPECT_EQ((*tokenizer)->decode(std::vector<int32_t>{0, 16777214, 16777216}), "");
}

TEST(DataErrors, TokenizerConfiguration) {
  const auto message = [](const char* config) {
    const auto tokenizer = parse_tokenizer_json(with(R"("added_tokens":[])"), config, "t");
    return tokenizer.ok() ? "ok" : tokenizer.error().message();
  };
  EXPECT_EQ(message(R"({"eos_token":"b"})"), "ok");
  const std::string deep = R"({"eos_token":{"content":)" + std::string(200000, '[') + std::string(200000, ']') + "}}";
  EXPECT_EQ(message(deep.c_str()), "t: tokenizer_config.json: is nested deeper than 64 levels");
  EXPECT_EQ(message("{"), "t: tokenizer_config.json: is not a JSON object");
  EXPECT_EQ(message(R"({"eos_token":"x"})"), "t: tokenizer_config.json.eos_token: \"x\" is not a token");
  EXPECT_EQ(message(R"({"eos_token":7})"), "t: tokenizer_config.json.eos_token: is not a token");
  EXPECT_EQ(message(R"({"bos_token":{}})"), "t: tokenizer_config.json.bos_token: is not a token");
  const TemporaryFolder folder;
  EXPECT_FALSE(load_tokenizer(folder.path().string()).ok());
  EXPECT_FALSE(load_tokenizer((folder.path() / "none.json").string()).ok());
  const auto tokenizer = parse_tokenizer_json(with(R"("added_tokens":[])"), "", "t");
  ASSERT_TRUE(tokenizer.ok());
  const auto data = open_dataset({.source = folder.write("t", "ab"), .sequence = 1}, **tokenizer);
  ASSERT_FALSE(data.ok());
  EXPECT_EQ(data.error().problem, "has no end-of-text token");
}

}  // namespace
}  // namespace fivefold
