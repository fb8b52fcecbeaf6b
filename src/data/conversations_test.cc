#include "data/conversations.h"

#include <gtest/gtest.h>

#include "data/temporary_folder.h"
#include "data/token_file.h"

namespace fivefold {
namespace {

using Ids = std::vector<int32_t>;

std::vector<std::vector<ChatMessage>> conversations(const std::filesystem::path& path) {
  std::vector<std::vector<ChatMessage>> out;
  const Status status = for_each_conversation(path, [&](const auto& messages, const std::string&) -> Status {
    out.push_back(messages);
    return Ok{};
  });
  EXPECT_TRUE(status.ok()) << status.error().message();
  return out;
}

std::string flat(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatMessage& message : messages) text += message.role + "=" + message.content + ";";
  return text;
}

TEST(Conversations, ThreeForms) {
  const TemporaryFolder folder;
  const auto path = folder.write(
      "a.jsonl", R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "id": 1})"
                 "\n \t\r\n"
                 R"({"prompt": "p", "completion": "c"})"
                 "\r\n"
                 R"({"instruction": "i", "input": "x", "output": "o"})"
                 "\n"
                 R"({"instruction": "i", "input": "", "output": "o"})");
  const auto found = conversations(path);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(flat(found[0]), "system=s;user=u;");
  EXPECT_EQ(flat(found[1]), "user=p;assistant=c;");
  EXPECT_EQ(flat(found[2]), "user=i\n\nx;assistant=o;");
  EXPECT_EQ(flat(found[3]), "user=i;assistant=o;");
}

TEST(Conversations, DamagedLinesAreNamed) {
  const auto error = [](const std::string& line) { return parse_conversation(line, "f:3").error(); };
  EXPECT_EQ(error("{").problem, "is not JSON in UTF-8");
  EXPECT_EQ(error("{\"prompt\": \"\xff\"}").problem, "is not JSON in UTF-8");
  EXPECT_EQ(error("[]").problem, "is not a JSON object");
  EXPECT_EQ(error(std::string(100, '[')).where, "f:3");
  EXPECT_EQ(error(R"({"text": "a"})").problem, "has none of \"messages\", \"prompt\" and \"instruction\"");
  EXPECT_EQ(error(R"({"prompt": "a", "messages": []})").problem, "has both \"messages\" and \"prompt\"");
  EXPECT_EQ(error(R"({"messages": []})").message(), "f:3.messages: is empty");
  EXPECT_EQ(error(R"({"messages": {}})").message(), "f:3.messages: is not an array");
  EXPECT_EQ(error(R"({"messages": [1]})").message(), "f:3.messages[0]: is not an object");
  EXPECT_EQ(error(R"({"messages": [{"content": ""}]})").message(), "f:3.messages[0]: has no \"role\"");
  EXPECT_EQ(error(R"({"messages": [{"role": "user", "content": ["a"]}]})").message(),
            "f:3.messages[0].content: is not a string");
  EXPECT_EQ(error(R"({"prompt": "a"})").message(), "f:3: has no \"completion\"");
  EXPECT_EQ(error(R"({"instruction": "a", "output": 1})").message(), "f:3.output: is not a string");
}

TEST(Conversations, ErrorsHaveFileAndLine) {
  const TemporaryFolder folder;
  const auto path = folder.write("a.jsonl", "{\"prompt\": \"p\", \"completion\": \"c\"}\n\n{\"prompt\": 1}\n");
  const Status status = for_each_conversation(path, [](const auto&, const std::string&) -> Status { return Ok{}; });
  EXPECT_EQ(status.error().message(), path.string() + ":3.prompt: is not a string");
  const auto tokenizer = make_byte_tokenizer();
  const auto made = [&](const char* line) {
    return tokenize_conversations_to_cache(folder.write("b.jsonl", line), *ChatTemplate::named("chatml"),
                                           LossOn::kCompletion, *tokenizer, folder.path())
        .error();
  };
  EXPECT_EQ(made(R"({"messages": [{"role": "user", "content": "a"}]})").message(),
            (folder.path() / "b.jsonl:1").string() +
                ": has no message of the assistant: no token would count (data.loss = all counts every token)");
  EXPECT_EQ(made(R"({"messages": [{"role": "tool", "content": "a"}]})").problem, "message 1: unknown role \"tool\"");
  EXPECT_EQ(made("\n").problem, "holds no conversation");
}

// With bytes for tokens the counted ones are the bytes of the ranges: of "<|user|>\na</s>\n<|assistant|>\nbc</s>\n" the
// 6 from byte 29 on ("bc</s>"): 9 + 1 + 4 + 1 for the question, 14 before the answer.
TEST(Conversations, CompletionsCountWithTheirEnd) {
  const auto tokenizer = make_byte_tokenizer();
  const auto chat = ChatTemplate::named("zephyr");
  const std::vector<ChatMessage> messages = {{"user", "a"}, {"assistant", "bc"}};
  const auto tokens = tokenize_conversation(messages, *chat, LossOn::kCompletion, *tokenizer, "f:1");
  ASSERT_TRUE(tokens.ok());
  ASSERT_EQ(tokens->ids.size(), 36U);
  Ids wanted(36, 0);
  std::fill(wanted.begin() + 29, wanted.begin() + 35, 1);
  EXPECT_EQ(tokens->counted, wanted);
  const auto all = tokenize_conversation(messages, *chat, LossOn::kAll, *tokenizer, "f:1");
  EXPECT_EQ(all->counted, Ids(36, 1));
  EXPECT_EQ(all->ids, tokens->ids);
}

// A tokenizer with merges over the border: "\n" + "b" is one token, so that "\nb" reaches into the answer and counts.
// Ids: "\n" is the letter U+010A of the byte alphabet.
TEST(Conversations, ATokenThatReachesIntoAnAnswerCounts) {
  const auto tokenizer = parse_tokenizer_json(
      R"({"model": {"type": "BPE", "vocab": {"<|im_start|>": 0, "<|im_end|>": 1, "u": 2, "s": 3, "e": 4, "r": 5, "a": 6, "i": 7,
          "t": 8, "n": 9, "Ċ": 10, "b": 11, "Ċb": 12, "c": 13}, "merges": ["Ċ b"]},
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
          "added_tokens": [{"id": 0, "content": "<|im_start|>", "special": true},
                           {"id": 1, "content": "<|im_end|>", "special": true}]})",
      "", "t");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  const auto chat = ChatTemplate::named("chatml");
  const auto tokens = tokenize_conversation({{"user", "c"}, {"assistant", "bc"}, {"user", "b"}, {"assistant", "c"}},
                                            *chat, LossOn::kCompletion, **tokenizer, "f:1");
  ASSERT_TRUE(tokens.ok());
  // <s>user\nc<e>\n <s>assistant\nbc<e>\n <s>user\nb<e>\n <s>assistant\nc<e>\n
  EXPECT_EQ(tokens->ids, (Ids{0, 2, 3, 4, 5, 10, 13, 1,  10, 0, 6, 3, 3, 7, 3, 8, 6, 9, 8,  12, 13, 1, 10,
                              0, 2, 3, 4, 5, 12, 1,  10, 0,  6, 3, 3, 7, 3, 8, 6, 9, 8, 10, 13, 1,  10}));
  EXPECT_EQ(tokens->counted, (Ids{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0,
                                  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0}));
}

TEST(Conversations, CacheIsKeyedByTemplateAndLoss) {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  const auto path = folder.write("a.jsonl", R"({"prompt": "p", "completion": "c"})");
  const auto make = [&](const char* chat, LossOn loss) {
    const auto files =
        tokenize_conversations_to_cache(path, *ChatTemplate::named(chat), loss, *tokenizer, folder.path() / "c");
    EXPECT_TRUE(files.ok()) << files.error().message();
    return *files;
  };
  const auto first = make("chatml", LossOn::kCompletion);
  EXPECT_EQ(make("chatml", LossOn::kCompletion).tokens, first.tokens);
  EXPECT_NE(make("smollm2", LossOn::kCompletion).tokens, first.tokens);
  EXPECT_NE(make("chatml", LossOn::kAll).tokens, first.tokens);

  std::filesystem::path damaged = first.counted;
  damaged += ".bin";
  std::filesystem::resize_file(damaged, 5);
  make("chatml", LossOn::kCompletion);
  const auto counted = TokenFile::open(first.counted, 2);
  ASSERT_TRUE(counted.ok()) << counted.error().message();
  EXPECT_EQ(counted->num_tokens(), TokenFile::open(first.tokens, 257)->num_tokens());
}

}  // namespace
}  // namespace fivefold
