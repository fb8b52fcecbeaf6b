// Conversations in JSON lines, rendered, tokenised as bytes, and laid into rows.
#include <algorithm>
#include <numeric>

#include "data/conversation_rows.h"
#include "data/conversations.h"
#include "fuzz/fuzz_target.h"

namespace fivefold::fuzz {
namespace {

constexpr int64_t kSequence = 40;  // shorter than many a conversation

// Bytes are tokens: what counts is exactly what the assistant wrote.
bool check_tokens(const std::vector<ChatMessage>& messages, const ChatTemplate& chat, const Tokenizer& tokenizer,
                  ConversationTokens& tokens) {
  const auto found = tokenize_conversation(messages, chat, LossOn::kCompletion, tokenizer, "f:1");
  if (!found.ok()) {
    check_error(found.error());
    return false;
  }
  tokens = *found;
  FIVEFOLD_CHECK(tokens.ids.size() == tokens.counted.size());
  const auto rendered = chat.render(messages, GenerationPrompt::kOmit);
  std::vector<int32_t> wanted(tokens.ids.size(), 0);
  for (const auto& range : rendered->completions)
    std::fill(wanted.begin() + static_cast<ptrdiff_t>(range.begin), wanted.begin() + static_cast<ptrdiff_t>(range.end),
              1);
  FIVEFOLD_CHECK(tokens.counted == wanted);
  return true;
}

void check_rows(const ScratchFolder& folder, const std::vector<ConversationTokens>& all) {
  TokenFileWriter tokens(folder.path() / "tokens", TokenType::kUint16);
  TokenFileWriter counted(folder.path() / "counted", TokenType::kUint8);
  int64_t targets = 0;  // that count among the first tokens of each
  for (const ConversationTokens& one : all) {
    tokens.add_document(one.ids);
    counted.add_document(one.counted);
    const size_t kept = std::min<size_t>(one.ids.size(), kSequence + 1);
    for (size_t i = 1; i < kept; ++i) targets += one.counted[i];
  }
  tokens.finish();
  counted.finish();
  for (const std::optional<uint64_t> seed : {std::optional<uint64_t>(), std::optional<uint64_t>(3)}) {
    auto opened = TokenFile::open(folder.path() / "tokens", 257);
    auto marks = TokenFile::open(folder.path() / "counted", 2);
    FIVEFOLD_CHECK(opened.ok() && marks.ok());
    const auto rows =
        ConversationRows::create(std::move(*opened), std::move(*marks), kSequence, Packing::kDocuments, seed);
    FIVEFOLD_CHECK(rows.ok() == (targets > 0));
    if (!rows.ok()) continue;
    TokenBatch batch;
    for (int64_t i = 0; i < (*rows)->num_samples(); ++i) {
      FIVEFOLD_CHECK((*rows)->append(i, batch).ok());
      const auto& lengths = batch.document_lengths.back();
      FIVEFOLD_CHECK(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == kSequence);
    }
    const auto size = static_cast<size_t>((*rows)->num_samples() * kSequence);
    FIVEFOLD_CHECK(batch.input_ids.size() == size && batch.targets.size() == size && batch.positions.size() == size);
    FIVEFOLD_CHECK(batch.valid_tokens == targets);
    (*rows)->remarks();
  }
}

}  // namespace
}  // namespace fivefold::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fivefold;
  static const fuzz::ScratchFolder folder;
  static const auto tokenizer = make_byte_tokenizer();
  static const auto chatml = ChatTemplate::named("chatml"), llama2 = ChatTemplate::named("llama-2");
  const std::filesystem::path file = folder.write("chat.jsonl", fuzz::as_text(data, size));
  std::vector<ConversationTokens> all;
  const Status status = for_each_conversation(file, [&](const auto& messages, const std::string& where) -> Status {
    FIVEFOLD_CHECK(!messages.empty() && !where.empty());
    ConversationTokens tokens;
    fuzz::check_tokens(messages, *llama2, *tokenizer, tokens);
    if (fuzz::check_tokens(messages, *chatml, *tokenizer, tokens)) all.push_back(std::move(tokens));
    return Ok{};
  });
  if (!status.ok()) fuzz::check_error(status.error());
  if (!all.empty()) fuzz::check_rows(folder, all);
  return 0;
}
