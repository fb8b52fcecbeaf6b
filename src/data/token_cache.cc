#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <span>

#include "base/progress.h"
#include "data/conversations.h"
#include "data/text_source.h"
#include "data/token_file.h"

namespace fivefold {
namespace {

// Part of every key: changes when the same text and tokenizer would give another token file.
constexpr uint64_t kCacheVersion = 1;
// Stands where a text has its format.
constexpr uint64_t kConversationFormat = 100;

struct SourceKey {
  std::string hex;          // 128 bits
  int64_t total_bytes = 0;  // of the source files
};

// `settings`: what else decides about the tokens.
Result<SourceKey> hash_source(const std::filesystem::path& path, uint64_t format, std::string_view settings,
                              const Tokenizer& tokenizer) {
  FIVEFOLD_ASSIGN(const auto files, list_text_files(path));
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const auto add = [&](uint64_t value) { XXH3_128bits_update(&state, &value, sizeof value); };
  add(kCacheVersion);
  add(format);
  add(tokenizer.fingerprint());
  if (!settings.empty()) XXH3_128bits_update(&state, settings.data(), settings.size());
  SourceKey key;
  for (const auto& name : files) {
    FIVEFOLD_ASSIGN(const MappedFile file, MappedFile::open(name));
    add(file.text().size());
    XXH3_128bits_update(&state, file.text().data(), file.text().size());
    key.total_bytes += static_cast<int64_t>(file.text().size());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  key.hex = fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  return key;
}

// Whether both pairs open and are of the same documents.
bool usable(const ConversationFiles& files, const Tokenizer& tokenizer) {
  const auto tokens = TokenFile::open(files.tokens, tokenizer.vocab_size());
  const auto counted = TokenFile::open(files.counted, 2);
  return tokens.ok() && counted.ok() && tokens->num_documents() == counted->num_documents() &&
         tokens->num_tokens() == counted->num_tokens();
}

}  // namespace

Result<std::filesystem::path> tokenize_to_cache(const std::filesystem::path& path, TextFormat format,
                                                const Tokenizer& tokenizer, const std::filesystem::path& cache_folder) {
  FIVEFOLD_ASSIGN(const SourceKey key, hash_source(path, static_cast<uint64_t>(format), "", tokenizer));
  const std::filesystem::path target = cache_folder / (path.stem().string() + "-" + key.hex);
  // A pair that does not open (a damaged disk) is made anew.
  if (TokenFile::open(target, tokenizer.vocab_size()).ok()) return target;

  std::filesystem::create_directories(cache_folder);
  TokenFileWriter writer(target, token_type_for(tokenizer.vocab_size()));
  Progress progress("tokenizing " + path.filename().string(), key.total_bytes);
  int64_t done_bytes = 0;
  FIVEFOLD_TRY(for_each_document(path, format, [&](std::string_view document) {
    writer.add_document(tokenizer.encode(document, Specials::kAdd));
    done_bytes += static_cast<int64_t>(document.size());
    progress.update(done_bytes);
  }));
  if (writer.num_tokens() == 0) return Error{path.string(), "holds no text", ""};
  writer.finish();
  return target;
}

Result<ConversationFiles> tokenize_conversations_to_cache(const std::filesystem::path& path, const ChatTemplate& chat,
                                                          LossOn loss, const Tokenizer& tokenizer,
                                                          const std::filesystem::path& cache_folder) {
  const std::string settings = fmt::format("{}\n{}", to_string(loss), chat.fingerprint());
  FIVEFOLD_ASSIGN(const SourceKey key, hash_source(path, kConversationFormat, settings, tokenizer));
  const std::filesystem::path stem = cache_folder / (path.stem().string() + "-" + key.hex);
  const ConversationFiles target{stem, stem.string() + "-counted"};
  if (usable(target, tokenizer)) return target;

  std::filesystem::create_directories(cache_folder);
  TokenFileWriter tokens(target.tokens, token_type_for(tokenizer.vocab_size()));
  TokenFileWriter counted(target.counted, TokenType::kUint8);
  Progress progress("tokenizing " + path.filename().string(), 0);
  int64_t conversations = 0;
  FIVEFOLD_TRY(
      for_each_conversation(path, [&](const std::vector<ChatMessage>& messages, const std::string& where) -> Status {
        FIVEFOLD_ASSIGN(const ConversationTokens conversation,
                        tokenize_conversation(messages, chat, loss, tokenizer, where));
        tokens.add_document(conversation.ids);
        counted.add_document(conversation.counted);
        progress.update(++conversations, "conversations");
        return Ok{};
      }));
  if (tokens.num_tokens() == 0) return Error{path.string(), "holds no conversation", ""};
  tokens.finish();
  counted.finish();
  return target;
}

}  // namespace fivefold
