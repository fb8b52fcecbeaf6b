// Which kind a Jinja template is of, and which one a run has.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/mapped_file.h"
#include "base/nesting.h"
#include "base/text.h"
#include "data/chat_template.h"

namespace fivefold {
namespace {

// Line feeds that a JSON text escaped twice, and quotes of the other kind, are the same to Jinja.
std::string normal_form(std::string_view jinja) {
  std::string text;
  for (size_t i = 0; i < jinja.size(); ++i) {
    if (jinja[i] == '\\' && i + 1 < jinja.size() && jinja[i + 1] == 'n') {
      text += '\n';
      ++i;
    } else {
      text += jinja[i] == '"' ? '\'' : jinja[i];
    }
  }
  return text;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// The system message that a ChatML template writes by itself: the text of a literal, between the marks. Empty: there is
// none. Nothing: it is put together from more than one literal.
std::optional<std::string> literal_system(const std::string& text) {
  constexpr std::string_view kBefore = "<|im_start|>system\n", kAfter = "<|im_end|>";
  for (size_t at = text.find(kBefore); at != std::string::npos; at = text.find(kBefore, at + 1)) {
    const size_t begin = at + kBefore.size(), end = text.find(kAfter, begin);
    if (end == std::string::npos || text.compare(begin, 1, "'") == 0) continue;
    const std::string system = text.substr(begin, end - begin);
    if (system.find_first_of("'{}\\") != std::string::npos) return std::nullopt;
    if (!system.empty()) return system;
  }
  return "";
}

// A part that makes a template of the kind write something else than its rendering here.
std::string_view unrendered(ChatTemplateKind kind, const std::string& text) {
  constexpr std::string_view kThoughts = "thoughts of the assistant", kDates = "dates", kTrims = "trimmed content";
  const bool trim = has(text, "trim") || has(text, "strip(");
  if (has(text, "<think>") || has(text, "reasoning_content")) return kThoughts;
  if (has(text, "strftime") || has(text, "Cutting Knowledge Date")) return kDates;
  switch (kind) {
    case ChatTemplateKind::kChatMl:
    case ChatTemplateKind::kPhi3:
    case ChatTemplateKind::kZephyr:
      return trim ? kTrims : "";
    case ChatTemplateKind::kLlama2:
    case ChatTemplateKind::kLlama3:
    case ChatTemplateKind::kGemma:
      return trim ? "" : "content as it is";
    case ChatTemplateKind::kMistral:
      if (trim) return kTrims;
      if (!has(text, "'[INST] ' + message['content'] + ' [/INST]'")) return "another frame around a question";
      return has(text, "' ' + message['content']") ? "a space before an answer" : "";
  }
  return "";
}

std::optional<ChatTemplateKind> kind_of(const std::string& text) {
  if (has(text, "<|im_start|>") && has(text, "<|im_end|>")) return ChatTemplateKind::kChatMl;
  if (has(text, "<|start_header_id|>") && has(text, "<|eot_id|>")) return ChatTemplateKind::kLlama3;
  if (has(text, "<start_of_turn>") && has(text, "<end_of_turn>")) return ChatTemplateKind::kGemma;
  if (has(text, "<|user|>\n") && has(text, "<|end|>\n")) return ChatTemplateKind::kPhi3;
  if (has(text, "<|user|>\n") && has(text, "eos_token")) return ChatTemplateKind::kZephyr;
  if (has(text, "[INST]") && has(text, "<<SYS>>")) return ChatTemplateKind::kLlama2;
  if (has(text, "[INST]") && has(text, "eos_token")) return ChatTemplateKind::kMistral;
  return std::nullopt;
}

std::string names_hint() { return "name one as data.chat_template: " + join(ChatTemplate::names(), ", "); }

// A token of tokenizer_config.json: text, or an object with "content"; empty when there is none.
std::string token_text(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return "";
  const nlohmann::json& value = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  return value.is_string() ? value.get<std::string>() : "";
}

// "chat_template": a text, or a list of {name, template} of which "default" counts.
Result<std::string> template_text(const nlohmann::json& config, const std::string& where) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return Error{where, "has no chat_template", names_hint()};
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array())
    for (const nlohmann::json& entry : *found)
      if (entry.is_object() && token_text(entry, "name") == "default") return token_text(entry, "template");
  return Error{where + ": chat_template", "is neither a text nor a list with one named \"default\"", names_hint()};
}

}  // namespace

Result<ChatTemplate> ChatTemplate::recognised(std::string_view jinja, std::string bos, std::string eos,
                                              const std::string& where) {
  const std::string text = normal_form(jinja);
  const auto kind = kind_of(text);
  if (!kind) return Error{where, "is of no known kind", names_hint()};
  ChatTemplate chat(*kind);
  if (const std::string_view part = unrendered(*kind, text); !part.empty())
    return Error{where, fmt::format("is of a known kind, but with {}", part), names_hint()};
  chat.bos_ = std::move(bos);
  chat.eos_ = std::move(eos);
  if (*kind == ChatTemplateKind::kChatMl) {
    const auto system = literal_system(text);
    if (!system)
      return Error{where, "is of a known kind, but with a system message that is not one literal", names_hint()};
    chat.default_system_ = *system;
  }
  if (*kind == ChatTemplateKind::kMistral && has(text, "eos_token + ' '")) chat.after_assistant_ = " ";
  return chat;
}

Result<ChatTemplate> load_chat_template(const std::string& name, const std::string& tokenizer) {
  std::error_code ignored;
  std::filesystem::path folder = tokenizer;
  if (!std::filesystem::is_directory(folder, ignored)) folder = folder.parent_path();
  const std::filesystem::path path = folder / "tokenizer_config.json";
  const bool exists = tokenizer != "bytes" && std::filesystem::exists(path, ignored);
  nlohmann::json config = nlohmann::json::object();
  if (exists) {
    FIVEFOLD_ASSIGN(const MappedFile file, MappedFile::open(path));
    FIVEFOLD_TRY(check_json_nesting(file.text(), path.string()));
    config = nlohmann::json::parse(file.text(), nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) return Error{path.string(), "is not a JSON object", ""};
  }
  const std::string bos = token_text(config, "bos_token"), eos = token_text(config, "eos_token");
  if (name != "auto") return ChatTemplate::named(name, bos, eos);
  const std::filesystem::path jinja = folder / "chat_template.jinja";
  if (tokenizer != "bytes" && std::filesystem::exists(jinja, ignored)) {
    FIVEFOLD_ASSIGN(const MappedFile file, MappedFile::open(jinja));
    return ChatTemplate::recognised(file.text(), bos, eos, jinja.string());
  }
  if (!exists)
    return Error{"data.chat_template",
                 fmt::format("is auto, and no tokenizer_config.json with a template lies beside {}", tokenizer),
                 names_hint()};
  FIVEFOLD_ASSIGN(const std::string text, template_text(config, path.string()));
  return ChatTemplate::recognised(text, bos, eos, path.string() + ": chat_template");
}

}  // namespace fivefold
