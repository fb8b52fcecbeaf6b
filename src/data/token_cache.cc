#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include "base/progress.h"
#include "data/text_source.h"
#include "data/token_file.h"

namespace fivefold {
namespace {

// Part of every key: changes when the same text and tokenizer would give another token file.
constexpr uint64_t kCacheVersion = 1;

struct SourceKey {
  std::string hex;          // 128 bits
  int64_t total_bytes = 0;  // of the source files
};

Result<SourceKey> hash_source(const std::filesystem::path& path, TextFormat format, const Tokenizer& tokenizer) {
  FIVEFOLD_ASSIGN(const auto files, list_text_files(path));
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const auto add = [&](uint64_t value) { XXH3_128bits_update(&state, &value, sizeof value); };
  add(kCacheVersion);
  add(static_cast<uint64_t>(format));
  add(tokenizer.fingerprint());
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

}  // namespace

Result<std::filesystem::path> tokenize_to_cache(const std::filesystem::path& path, TextFormat format,
                                                const Tokenizer& tokenizer, const std::filesystem::path& cache_folder) {
  FIVEFOLD_ASSIGN(const SourceKey key, hash_source(path, format, tokenizer));
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

}  // namespace fivefold
