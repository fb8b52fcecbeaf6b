#include "data/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "data/utf8.h"

namespace fivefold {
namespace {

struct NamedTemplate {
  std::string_view name;
  ChatTemplateKind kind;
  std::string_view bos, eos;
  std::string_view default_system = "";
};
// <bos> and <eos> are those of the model that a kind is named after.
constexpr NamedTemplate kNamed[] = {
    {"chatml", ChatTemplateKind::kChatMl, "<|im_start|>", "<|im_end|>"},
    {"smollm2", ChatTemplateKind::kChatMl, "<|im_start|>", "<|im_end|>",
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {"qwen2", ChatTemplateKind::kChatMl, "", "<|im_end|>", "You are a helpful assistant."},
    {"qwen2.5", ChatTemplateKind::kChatMl, "", "<|im_end|>",
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {"llama-2", ChatTemplateKind::kLlama2, "<s>", "</s>"},
    {"llama-3", ChatTemplateKind::kLlama3, "<|begin_of_text|>", "<|eot_id|>"},
    {"mistral-instruct", ChatTemplateKind::kMistral, "<s>", "</s>"},
    {"gemma", ChatTemplateKind::kGemma, "<bos>", "<eos>"},
    {"phi-3", ChatTemplateKind::kPhi3, "<s>", "<|endoftext|>"},
    {"zephyr", ChatTemplateKind::kZephyr, "<s>", "</s>"},
};

bool trims(ChatTemplateKind kind) {
  return kind == ChatTemplateKind::kLlama2 || kind == ChatTemplateKind::kLlama3 || kind == ChatTemplateKind::kGemma;
}

// Without white space at both ends. Text that is not UTF-8 is what the tokenizer would make of it.
std::string trimmed(std::string_view content) {
  const std::string text = to_valid_utf8(content);
  size_t begin = 0, end = text.size();
  while (begin < end && is_white_space(decode_utf8(text, begin))) begin += utf8_length(text[begin]);
  while (end > begin) {
    const size_t at = previous_character(text, end);
    if (!is_white_space(decode_utf8(text, at))) break;
    end = at;
  }
  return text.substr(begin, end - begin);
}

// What stands before and after the content of a message.
struct Frame {
  std::string before, after;
};
Frame frame_of(ChatTemplateKind kind, const std::string& role, const std::string& eos) {
  switch (kind) {
    case ChatTemplateKind::kChatMl:
      return {"<|im_start|>" + role + "\n", "<|im_end|>"};
    case ChatTemplateKind::kLlama3:
      return {"<|start_header_id|>" + role + "<|end_header_id|>\n\n", "<|eot_id|>"};
    case ChatTemplateKind::kGemma:
      return {"<start_of_turn>" + (role == "assistant" ? "model" : role) + "\n", "<end_of_turn>"};
    case ChatTemplateKind::kPhi3:
      return {"<|" + role + "|>\n", "<|end|>"};
    case ChatTemplateKind::kZephyr:
      return {"<|" + role + "|>\n", eos};
    case ChatTemplateKind::kLlama2:
    case ChatTemplateKind::kMistral:
      break;
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> names;
  for (const NamedTemplate& entry : kNamed) names.emplace_back(entry.name);
  return names;
}

Result<ChatTemplate> ChatTemplate::named(std::string_view name, std::string bos, std::string eos) {
  for (const NamedTemplate& entry : kNamed) {
    if (name != entry.name) continue;
    ChatTemplate chat(entry.kind);
    chat.bos_ = bos.empty() ? std::string(entry.bos) : std::move(bos);
    chat.eos_ = eos.empty() ? std::string(entry.eos) : std::move(eos);
    chat.default_system_ = entry.default_system;
    return chat;
  }
  std::vector<std::string> known = names();
  known.insert(known.begin(), "auto");
  return Error{"data.chat_template", fmt::format("unknown template \"{}\"", name), name_hint(name, known)};
}

std::string ChatTemplate::fingerprint() const {
  return fmt::format("{}\n{}\n{}\n{}\n{}", static_cast<int>(kind_), bos_, eos_, default_system_, after_assistant_);
}

Status ChatTemplate::check(std::span<const ChatMessage> messages) const {
  const auto fail = [](size_t i, std::string problem, std::string hint = "") {
    return Error{fmt::format("message {}", i + 1), std::move(problem), std::move(hint)};
  };
  if (messages.empty()) return Error{"messages", "there are none", ""};
  const bool alternates =
      kind_ == ChatTemplateKind::kLlama2 || kind_ == ChatTemplateKind::kMistral || kind_ == ChatTemplateKind::kGemma;
  const bool first_system = messages[0].role == "system";
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant")
      return fail(i, fmt::format("unknown role \"{}\"", role), "known: system, user, assistant");
    if (role == "system" && i > 0) return fail(i, "a system message is not the first");
    if (role == "system" && (kind_ == ChatTemplateKind::kGemma || kind_ == ChatTemplateKind::kMistral))
      return fail(i, "this template has no place for a system message", "put it before the first question");
    const bool user_turn = (i - (first_system ? 1 : 0)) % 2 == 0;
    if (alternates && role != "system" && (role == "user") != user_turn)
      return fail(i, fmt::format("{} out of turn", role), "this template alternates user and assistant");
  }
  if (kind_ == ChatTemplateKind::kLlama2 && first_system && messages.size() == 1)
    return fail(0, "a system message without a question");
  return Ok{};
}

RenderedChat ChatTemplate::render_turns(std::span<const ChatMessage> messages, GenerationPrompt prompt) const {
  RenderedChat chat;
  const bool begins = kind_ == ChatTemplateKind::kLlama3 || kind_ == ChatTemplateKind::kGemma;
  const bool line_feed = kind_ != ChatTemplateKind::kLlama3;
  if (begins) chat.text = bos_;
  const auto add = [&](const std::string& role, const std::string& content) {
    const Frame frame = frame_of(kind_, role, eos_);
    chat.text += frame.before;
    const size_t begin = chat.text.size();
    chat.text += (trims(kind_) ? trimmed(content) : content) + frame.after;
    if (role == "assistant") chat.completions.push_back({begin, chat.text.size()});
    if (line_feed) chat.text += '\n';
  };
  if (!default_system_.empty() && messages[0].role != "system") add("system", default_system_);
  for (const ChatMessage& message : messages) add(message.role, message.content);
  if (prompt == GenerationPrompt::kAdd)
    chat.text += frame_of(kind_, "assistant", eos_).before;
  else if (kind_ == ChatTemplateKind::kPhi3)
    chat.text += eos_;
  return chat;
}

// Llama 2 and Mistral, where a question and its answer make one sequence, or a part of one.
RenderedChat ChatTemplate::render_pairs(std::span<const ChatMessage> messages) const {
  const bool llama = kind_ == ChatTemplateKind::kLlama2;
  RenderedChat chat;
  if (!llama) chat.text = bos_;
  std::string system;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      system = "<<SYS>>\n" + message.content + "\n<</SYS>>\n\n";
    } else if (message.role == "user") {
      const std::string question = std::exchange(system, "") + message.content;
      chat.text += (llama ? bos_ : "") + "[INST] " + (llama ? trimmed(question) : question) + " [/INST]";
    } else {
      const size_t begin = chat.text.size();
      chat.text += (llama ? " " + trimmed(message.content) + " " : message.content) + eos_;
      chat.completions.push_back({begin, chat.text.size()});
      chat.text += after_assistant_;
    }
  }
  return chat;
}

Result<RenderedChat> ChatTemplate::render(std::span<const ChatMessage> messages, GenerationPrompt prompt) const {
  FIVEFOLD_TRY(check(messages));
  if (kind_ == ChatTemplateKind::kLlama2 || kind_ == ChatTemplateKind::kMistral) return render_pairs(messages);
  return render_turns(messages, prompt);
}

}  // namespace fivefold
