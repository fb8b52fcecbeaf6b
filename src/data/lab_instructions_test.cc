// The instruction data that the lab trains on (examples/lab): every answer in the form that is to be learned, and no
// question of the held-out file in the other.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "data/conversations.h"

namespace fivefold {
namespace {

std::vector<std::vector<ChatMessage>> lab_file(const char* name) {
  std::vector<std::vector<ChatMessage>> conversations;
  const std::filesystem::path path = std::filesystem::path(FIVEFOLD_SOURCE_DIR "/examples/lab") / name;
  const Status status = for_each_conversation(path, [&](const auto& messages, const std::string&) -> Status {
    conversations.push_back(messages);
    return Ok{};
  });
  EXPECT_TRUE(status.ok()) << status.error().message();
  return conversations;
}

// "Log: SENTENCE.\nAnswer: WORDS"
void expect_form(const std::string& answer) {
  ASSERT_TRUE(answer.starts_with("Log: ")) << answer;
  const size_t line = answer.find('\n');
  ASSERT_NE(line, std::string::npos) << answer;
  EXPECT_EQ(answer.rfind('\n'), line) << answer;
  EXPECT_EQ(answer[line - 1], '.') << answer;
  EXPECT_EQ(answer.substr(line + 1, 8), "Answer: ") << answer;
  EXPECT_GT(answer.size(), line + 9) << answer;
  EXPECT_LT(answer.size(), 250U) << answer;
}

TEST(LabInstructions, HaveTheFormThatIsToBeLearned) {
  std::set<std::string> questions;
  size_t conversations = 0;
  for (const char* name : {"instructions.jsonl", "held-out.jsonl"}) {
    const auto all = lab_file(name);
    EXPECT_GE(all.size(), name[0] == 'i' ? 290U : 40U) << name;
    for (const auto& messages : all) {
      ASSERT_EQ(messages.size(), 2U);
      EXPECT_EQ(messages[0].role, "user");
      EXPECT_EQ(messages[1].role, "assistant");
      questions.insert(messages[0].content);
      expect_form(messages[1].content);
      ++conversations;
    }
  }
  EXPECT_EQ(questions.size(), conversations);
}

}  // namespace
}  // namespace fivefold
