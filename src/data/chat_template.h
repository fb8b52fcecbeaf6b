// Chat templates: a conversation as the text that a model was trained on, with the places that the assistant wrote. The
// kinds in use are known by name and recognised in the Jinja text of a tokenizer_config.json by what only they contain;
// Jinja itself is not run, and a text that is of no known kind, or of a kind with additions that change the result, is
// refused. Thread-safe.
//
// What the kinds write, with one line for each message (B and E: <bos> and <eos>; content is trimmed under *):
//   chatml            <|im_start|>ROLE\nCONTENT<|im_end|>\n
//   llama-2 *         B[INST] <<SYS>>\nSYSTEM\n<</SYS>>\n\nUSER [/INST] and then ASSISTANT E, each with a space around
//   llama-3 *         <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>, B before the first
//   mistral-instruct  B before the first, [INST] USER [/INST] and then ASSISTANTE
//   gemma *           <start_of_turn>ROLE\nCONTENT<end_of_turn>\n, B before the first, the assistant is called "model"
//   phi-3             <|ROLE|>\nCONTENT<|end|>\n, E at the end
//   zephyr            <|ROLE|>\nCONTENTE\n
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fivefold {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// Whether the text ends with what the assistant's next message starts with.
enum class GenerationPrompt : uint8_t { kOmit, kAdd };

struct RenderedChat {
  struct Range {
    size_t begin, end;  // bytes
  };
  std::string text;
  std::vector<Range> completions;  // what the assistant wrote, its end-of-turn token included
};

enum class ChatTemplateKind : uint8_t { kChatMl, kLlama2, kLlama3, kMistral, kGemma, kPhi3, kZephyr };

class ChatTemplate {
 public:
  // Names that named() knows.
  static std::vector<std::string> names();
  // `bos` and `eos`: the tokenizer's; empty: those of the kind's first model. Errors: unknown name (where:
  // data.chat_template, with the known ones).
  static Result<ChatTemplate> named(std::string_view name, std::string bos = "", std::string eos = "");
  // Errors: of no known kind, or one with a part that is not rendered (where: `where`; the hint has the names).
  static Result<ChatTemplate> recognised(std::string_view jinja, std::string bos, std::string eos,
                                         const std::string& where);

  // Errors (where: "message N", from 1): no messages, an unknown role, a system message that is not the first or that
  // the kind has no place for, roles that do not alternate where the kind pairs them. The text is meant for
  // Specials::kOmit: it has its own <bos>.
  Result<RenderedChat> render(std::span<const ChatMessage> messages, GenerationPrompt prompt) const;

  ChatTemplateKind kind() const { return kind_; }
  // Equal for templates that render alike.
  std::string fingerprint() const;

 private:
  explicit ChatTemplate(ChatTemplateKind kind) : kind_(kind) {}
  RenderedChat render_pairs(std::span<const ChatMessage> messages) const;
  RenderedChat render_turns(std::span<const ChatMessage> messages, GenerationPrompt prompt) const;
  Status check(std::span<const ChatMessage> messages) const;

  ChatTemplateKind kind_;
  std::string bos_, eos_;
  std::string default_system_;   // chatml: of a conversation that does not begin with one; empty: none
  std::string after_assistant_;  // mistral: between <eos> and the next [INST]
};

// The template of a run: `name` "auto" takes the one of `chat_template.jinja` or `tokenizer_config.json` beside the
// tokenizer at `tokenizer` (a tokenizer.json or its folder); another name is named(), with the <bos> and <eos> of that
// file where it has them. Errors: under "auto" no such file or no template in it; those of named() and recognised().
Result<ChatTemplate> load_chat_template(const std::string& name, const std::string& tokenizer);

}  // namespace fivefold
