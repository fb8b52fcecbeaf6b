// tokenizer_config.json with a chat template and, behind a NUL, a conversation.
#include "data/conversations.h"
#include "fuzz/fuzz_target.h"

namespace fivefold::fuzz {
namespace {

void check_rendering(const ChatTemplate& chat, const std::vector<ChatMessage>& messages) {
  for (const GenerationPrompt prompt : {GenerationPrompt::kOmit, GenerationPrompt::kAdd}) {
    const auto rendered = chat.render(messages, prompt);
    if (!rendered.ok()) {
      check_error(rendered.error());
      continue;
    }
    size_t end = 0, assistants = 0;
    for (const auto& range : rendered->completions) {
      FIVEFOLD_CHECK(end <= range.begin && range.begin <= range.end && range.end <= rendered->text.size());
      end = range.end;
    }
    for (const ChatMessage& message : messages) assistants += message.role == "assistant" ? 1 : 0;
    FIVEFOLD_CHECK(rendered->completions.size() == assistants);
  }
}

}  // namespace
}  // namespace fivefold::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  static const fuzz::ScratchFolder folder;
  const auto files = fuzz::parts(fuzz::as_text(data, size), 2);
  folder.write("tokenizer_config.json", files[0]);
  std::vector<ChatMessage> messages = {{"system", "s"}, {"user", " u\n"}, {"assistant", "\xC2\xA0 a"}};
  if (!files[1].empty()) {
    auto parsed = parse_conversation(files[1], "f:1");
    if (!parsed.ok())
      fuzz::check_error(parsed.error());
    else
      messages = std::move(parsed).value();
  }
  for (const char* name : {"auto", "zephyr", "llama-2", "gemma"}) {
    const auto chat = load_chat_template(name, folder.path() / "tokenizer.json");
    if (!chat.ok()) {
      fuzz::check_error(chat.error());
      continue;
    }
    FIVEFOLD_CHECK(!chat->fingerprint().empty());
    fuzz::check_rendering(*chat, messages);
  }
  return 0;
}
