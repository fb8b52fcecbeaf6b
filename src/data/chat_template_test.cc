#include "data/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/temporary_folder.h"

namespace fivefold {
namespace {

using Messages = std::vector<ChatMessage>;

const Messages kShort = {{"user", "Hi"}};
const Messages kLong = {
    {"system", "Be brief."}, {"user", "2+2?"}, {"assistant", "4"}, {"user", "And 3+3?"}, {"assistant", " 6\n"}};

RenderedChat rendered(const Result<ChatTemplate>& chat, const Messages& messages,
                      GenerationPrompt prompt = GenerationPrompt::kOmit) {
  EXPECT_TRUE(chat.ok()) << chat.error().message();
  auto result = chat->render(messages, prompt);
  EXPECT_TRUE(result.ok()) << result.error().message();
  return std::move(result).value();
}

std::vector<std::string> completions(const RenderedChat& chat) {
  std::vector<std::string> parts;
  for (const auto& range : chat.completions) parts.push_back(chat.text.substr(range.begin, range.end - range.begin));
  return parts;
}

// What the published templates of these models write (transformers' apply_chat_template), put down by hand.
TEST(ChatTemplate, ChatMl) {
  const auto chat = ChatTemplate::named("chatml");
  const RenderedChat all = rendered(chat, kLong);
  EXPECT_EQ(
      all.text,
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
      "<|im_start|>user\nAnd 3+3?<|im_end|>\n<|im_start|>assistant\n 6\n<|im_end|>\n");
  EXPECT_EQ(completions(all), (std::vector<std::string>{"4<|im_end|>", " 6\n<|im_end|>"}));
  EXPECT_EQ(rendered(chat, kShort, GenerationPrompt::kAdd).text,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(rendered(ChatTemplate::named("qwen2"), kShort).text,
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

TEST(ChatTemplate, Llama2) {
  const RenderedChat all = rendered(ChatTemplate::named("llama-2"), kLong);
  EXPECT_EQ(all.text, "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n2+2? [/INST] 4 </s><s>[INST] And 3+3? [/INST] 6 </s>");
  EXPECT_EQ(completions(all), (std::vector<std::string>{" 4 </s>", " 6 </s>"}));
}

TEST(ChatTemplate, Llama3) {
  const auto chat = ChatTemplate::named("llama-3");
  const RenderedChat all = rendered(chat, kLong);
  EXPECT_EQ(all.text,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n2+2?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n4<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nAnd 3+3?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n6<|eot_id|>");
  EXPECT_EQ(completions(all), (std::vector<std::string>{"4<|eot_id|>", "6<|eot_id|>"}));
  EXPECT_EQ(rendered(chat, kShort, GenerationPrompt::kAdd).text,
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(ChatTemplate, Mistral) {
  const RenderedChat all =
      rendered(ChatTemplate::named("mistral-instruct"), {{"user", "a"}, {"assistant", "b"}, {"user", "c"}});
  EXPECT_EQ(all.text, "<s>[INST] a [/INST]b</s>[INST] c [/INST]");
  EXPECT_EQ(completions(all), (std::vector<std::string>{"b</s>"}));
}

TEST(ChatTemplate, Gemma) {
  const auto chat = ChatTemplate::named("gemma");
  const RenderedChat all = rendered(chat, {{"user", " a "}, {"assistant", "b\xC2\xA0\n"}}, GenerationPrompt::kAdd);
  EXPECT_EQ(all.text,
            "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(completions(all), (std::vector<std::string>{"b<end_of_turn>"}));
}

TEST(ChatTemplate, Phi3AndZephyr) {
  const RenderedChat phi = rendered(ChatTemplate::named("phi-3"), {{"user", "a"}, {"assistant", "b"}});
  EXPECT_EQ(phi.text, "<|user|>\na<|end|>\n<|assistant|>\nb<|end|>\n<|endoftext|>");
  EXPECT_EQ(completions(phi), (std::vector<std::string>{"b<|end|>"}));
  const RenderedChat zephyr =
      rendered(ChatTemplate::named("zephyr"), {{"system", "s"}, {"user", "a"}}, GenerationPrompt::kAdd);
  EXPECT_EQ(zephyr.text, "<|system|>\ns</s>\n<|user|>\na</s>\n<|assistant|>\n");
}

// Templates as tokenizer_config.json files have them, shortened to what a kind is known by.
TEST(ChatTemplate, KindsAreRecognised) {
  const auto kind = [](const char* jinja) {
    const auto chat = ChatTemplate::recognised(jinja, "<s>", "</s>", "t");
    EXPECT_TRUE(chat.ok()) << chat.error().message();
    return chat->kind();
  };
  EXPECT_EQ(kind("{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"),
            ChatTemplateKind::kChatMl);
  EXPECT_EQ(kind("'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
                 "'<|eot_id|>'"),
            ChatTemplateKind::kLlama3);
  EXPECT_EQ(kind("'<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n'"),
            ChatTemplateKind::kGemma);
  EXPECT_EQ(kind("{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"), ChatTemplateKind::kPhi3);
  EXPECT_EQ(kind("{{ '<|user|>\n' + message['content'] + eos_token }}"), ChatTemplateKind::kZephyr);
  EXPECT_EQ(kind("bos_token + '[INST] ' + '<<SYS>>\\n' + content.strip() + ' [/INST]'"), ChatTemplateKind::kLlama2);
  EXPECT_EQ(kind("{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + eos_token}}"),
            ChatTemplateKind::kMistral);
}

TEST(ChatTemplate, Qwen25BringsItsSystemMessage) {
  const auto chat = ChatTemplate::recognised(
      "{%- if tools %}{{- '<|im_start|>system\\n' }}{{- messages[0]['content'] }}{%- else %}"
      "{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
      "{{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}",
      "", "<|im_end|>", "t");
  EXPECT_EQ(rendered(chat, kShort).text,
            "<|im_start|>system\nYou are Qwen.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

TEST(ChatTemplateErrors, OfTemplates) {
  const auto error = [](const char* jinja) { return ChatTemplate::recognised(jinja, "", "", "t").error().message(); };
  const std::string hint =
      " (name one as data.chat_template: chatml, smollm2, qwen2, qwen2.5, llama-2, llama-3, mistral-instruct, gemma, "
      "phi-3, "
      "zephyr)";
  EXPECT_EQ(error("{{ messages }}"), "t: is of no known kind" + hint);
  EXPECT_EQ(error("<|im_start|><|im_end|><think>"), "t: is of a known kind, but with thoughts of the assistant" + hint);
  EXPECT_EQ(error("<|start_header_id|><|eot_id|>Cutting Knowledge Date"),
            "t: is of a known kind, but with dates" + hint);
  EXPECT_EQ(error("<|start_header_id|><|eot_id|>"), "t: is of a known kind, but with content as it is" + hint);
  EXPECT_EQ(error("<|im_start|><|im_end|> | trim"), "t: is of a known kind, but with trimmed content" + hint);
  EXPECT_EQ(error("'<|im_start|>system\nA' + b + '<|im_end|>'"),
            "t: is of a known kind, but with a system message that is not one literal" + hint);
  EXPECT_EQ(error("'[INST] ' + message['content'] + '[/INST]' + eos_token"),
            "t: is of a known kind, but with another frame around a question" + hint);
  EXPECT_EQ(ChatTemplate::named("chatlm").error().message(),
            "data.chat_template: unknown template \"chatlm\" (did you mean chatml?)");
}

TEST(ChatTemplateErrors, OfConversations) {
  const auto error = [](const char* name, const Messages& messages) {
    return ChatTemplate::named(name)->render(messages, GenerationPrompt::kOmit).error().message();
  };
  EXPECT_EQ(error("chatml", {}), "messages: there are none");
  EXPECT_EQ(error("chatml", {{"user", ""}, {"tool", ""}}),
            "message 2: unknown role \"tool\" (known: system, user, assistant)");
  EXPECT_EQ(error("chatml", {{"user", ""}, {"system", ""}}), "message 2: a system message is not the first");
  EXPECT_EQ(error("gemma", {{"system", ""}}),
            "message 1: this template has no place for a system message (put it before the first question)");
  EXPECT_EQ(error("llama-2", {{"assistant", ""}}),
            "message 1: assistant out of turn (this template alternates user and assistant)");
  EXPECT_EQ(error("llama-2", {{"system", ""}, {"user", ""}, {"user", ""}}),
            "message 3: user out of turn (this template alternates user and assistant)");
  EXPECT_EQ(error("llama-2", {{"system", ""}}), "message 1: a system message without a question");
}

TEST(ChatTemplate, OfARunComesFromTheTokenizersFolder) {
  const TemporaryFolder folder;
  const std::string tokenizer = folder.path() / "tokenizer.json";
  EXPECT_EQ(load_chat_template("auto", tokenizer).error().problem,
            "is auto, and no tokenizer_config.json with a template lies beside " + tokenizer);
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<end>"}})");
  EXPECT_EQ(load_chat_template("auto", tokenizer).error().problem, "has no chat_template");
  EXPECT_EQ(rendered(load_chat_template("zephyr", tokenizer), kShort).text, "<|user|>\nHi<end>\n");
  folder.write("tokenizer_config.json", R"({"eos_token": "<e>", "chat_template": [{"name": "rag", "template": "x"},
      {"name": "default", "template": "{{ '<|user|>\n' + message['content'] + eos_token }}"}]})");
  EXPECT_EQ(rendered(load_chat_template("auto", folder.path()), kShort).text, "<|user|>\nHi<e>\n");
  folder.write("chat_template.jinja", "<|im_start|> <|im_end|>");
  EXPECT_EQ(load_chat_template("auto", tokenizer)->kind(), ChatTemplateKind::kChatMl);
  folder.write("tokenizer_config.json", "[");
  EXPECT_EQ(load_chat_template("auto", tokenizer).error().problem, "is not a JSON object");
}

// The template of the published SmolLM2 file, and what transformers renders with it.
TEST(ChatTemplate, SmolLm2AsTheReference) {
  const char* shared = std::getenv("FIVEFOLD_SHARED");
  const std::filesystem::path folder =
      std::filesystem::path(shared != nullptr ? shared : FIVEFOLD_SOURCE_DIR "/../shared") / "oracles/smollm2";
  if (!std::filesystem::exists(folder / "tokens.json")) GTEST_SKIP() << folder << " is not there";
  const auto read = [&](const char* name) {
    std::ifstream file(folder / name);
    return nlohmann::json::parse(file);
  };
  const auto jinja = read("file.json").at("fields").at("tokenizer.chat_template").get<std::string>();
  const auto chat = ChatTemplate::recognised(jinja, "<|im_start|>", "<|im_end|>", "t");
  const auto rows = read("tokens.json").at("chat");
  ASSERT_EQ(rows.size(), 2U);
  for (const auto& row : rows) {
    Messages messages;
    for (const auto& message : row.at("messages")) messages.push_back({message.at("role"), message.at("content")});
    for (const auto& same : {chat, ChatTemplate::named("smollm2")})
      EXPECT_EQ(rendered(same, messages, GenerationPrompt::kAdd).text, row.at("text").get<std::string>());
  }
}

}  // namespace
}  // namespace fivefold
