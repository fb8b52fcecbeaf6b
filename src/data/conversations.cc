#include "data/conversations.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapped_file.h"
#include "base/nesting.h"
#include "base/units.h"
#include "data/json_fields.h"
#include "data/text_source.h"

namespace fivefold {
namespace {

constexpr const char* kFormsHint = R"(each line is {"messages": [{"role": ..., "content": ...}, ...]}, )"
                                   R"({"prompt": ..., "completion": ...} or {"instruction": ..., "output": ...})";

Result<std::vector<ChatMessage>> parse_messages(const JsonFields& line) {
  FIVEFOLD_ASSIGN(const nlohmann::json* list, line.required_array("messages"));
  if (list->empty()) return Error{line.place("messages"), "is empty", ""};
  std::vector<ChatMessage> messages;
  for (const nlohmann::json& entry : *list) {
    const std::string where = fmt::format("{}[{}]", line.place("messages"), messages.size());
    FIVEFOLD_ASSIGN(const JsonFields fields, JsonFields::of(entry, where));
    FIVEFOLD_ASSIGN(std::string role, fields.required_string("role"));
    FIVEFOLD_ASSIGN(std::string content, fields.required_string("content"));
    messages.push_back({std::move(role), std::move(content)});
  }
  return messages;
}

Result<std::vector<ChatMessage>> parse_pair(const JsonFields& line, const char* question, const char* answer) {
  FIVEFOLD_ASSIGN(std::string asked, line.required_string(question));
  FIVEFOLD_ASSIGN(const std::string input, line.string_or("input", ""));
  FIVEFOLD_ASSIGN(std::string answered, line.required_string(answer));
  if (!input.empty()) asked += "\n\n" + input;
  return std::vector<ChatMessage>{{"user", std::move(asked)}, {"assistant", std::move(answered)}};
}

// How many elements two lists have in common from the start.
size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

Result<std::vector<ChatMessage>> parse_conversation(std::string_view line, const std::string& where) {
  FIVEFOLD_TRY(check_json_nesting(line, where));
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Error{where, "is not JSON in UTF-8", kFormsHint};
  if (!json.is_object()) return Error{where, "is not a JSON object", kFormsHint};
  FIVEFOLD_ASSIGN(const JsonFields fields, JsonFields::of(json, where));
  std::vector<std::string> forms;
  for (const char* key : {"messages", "prompt", "instruction"})
    if (fields.find(key) != nullptr) forms.emplace_back(key);
  if (forms.empty()) return Error{where, "has none of \"messages\", \"prompt\" and \"instruction\"", kFormsHint};
  if (forms.size() > 1) return Error{where, fmt::format("has both \"{}\" and \"{}\"", forms[0], forms[1]), kFormsHint};
  if (forms[0] == "messages") return parse_messages(fields);
  return forms[0] == "prompt" ? parse_pair(fields, "prompt", "completion")
                              : parse_pair(fields, "instruction", "output");
}

Status for_each_conversation(const std::filesystem::path& path,
                             const std::function<Status(const std::vector<ChatMessage>&, const std::string&)>& each) {
  FIVEFOLD_ASSIGN(const auto files, list_text_files(path));
  for (const auto& name : files) {
    FIVEFOLD_ASSIGN(const MappedFile file, MappedFile::open(name));
    const std::string_view text = file.text();
    int64_t number = 1;
    for (size_t begin = 0; begin < text.size(); ++number) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = text.substr(begin, end - begin);
      begin = end + 1;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const std::string where = fmt::format("{}:{}", name.string(), number);
      // Tokens of a document are counted in 31 bits.
      if (line.size() > static_cast<size_t>(kGiB)) return Error{where, "is longer than 1 GiB", ""};
      FIVEFOLD_ASSIGN(const std::vector<ChatMessage> messages, parse_conversation(line, where));
      FIVEFOLD_TRY(each(messages, where));
    }
  }
  return Ok{};
}

Result<ConversationTokens> tokenize_conversation(const std::vector<ChatMessage>& messages, const ChatTemplate& chat,
                                                 LossOn loss, const Tokenizer& tokenizer, const std::string& where) {
  const auto rendered = chat.render(messages, GenerationPrompt::kOmit);
  if (!rendered.ok())
    return Error{where, rendered.error().where + ": " + rendered.error().problem, rendered.error().hint};
  ConversationTokens tokens;
  tokens.ids = tokenizer.encode(rendered->text);
  if (loss == LossOn::kAll) {
    tokens.counted.assign(tokens.ids.size(), 1);
    return tokens;
  }
  if (rendered->completions.empty())
    return Error{where, "has no message of the assistant: no token would count", "data.loss = all counts every token"};
  tokens.counted.assign(tokens.ids.size(), 0);
  const std::string_view text = rendered->text;
  for (const RenderedChat::Range& range : rendered->completions) {
    // A tokenizer gives no positions; but what precedes a place in the text has the same ids up to the token that
    // reaches over it.
    const size_t begin = common_prefix(tokens.ids, tokenizer.encode(text.substr(0, range.begin)));
    const size_t end = common_prefix(tokens.ids, tokenizer.encode(text.substr(0, range.end)));
    for (size_t i = begin; i < end; ++i) tokens.counted[i] = 1;
  }
  return tokens;
}

}  // namespace fivefold
