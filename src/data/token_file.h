// Token files: documents of token ids in Megatron's `.bin` / `.idx` pair. Layout and checks:
// docs/formats/token-files.md.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"

namespace fivefold {

// Element types by their code in the index. Token ids are never floating point: those codes are refused.
enum class TokenType : uint8_t { kUint8 = 1, kInt8 = 2, kInt16 = 3, kInt32 = 4, kInt64 = 5, kUint16 = 8 };

constexpr int64_t token_type_bytes(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  FIVEFOLD_CHECK(false);
}

// The smallest type the writer uses for ids below `vocab_size`: uint16 up to 65536, else int32 (as Megatron does).
constexpr TokenType token_type_for(int64_t vocab_size) {
  return vocab_size <= 65536 ? TokenType::kUint16 : TokenType::kInt32;
}

// Memory-mapped reader. Movable; const functions are thread-safe.
class TokenFile {
 public:
  // `path`: the pair's common name, or either file. Ids are checked against `vocab_size` when they are read.
  // Errors: a file that cannot be read; index too short, bad magic, version or type; counts beyond the file; negative
  // lengths; pointers negative, unaligned or beyond .bin; document index not rising from 0 to the number of sequences;
  // a .bin of another size than the lengths add up to; vocab_size < 1.
  static Result<TokenFile> open(const std::filesystem::path& path, int64_t vocab_size);

  const std::filesystem::path& path() const { return bin_path_; }
  TokenType type() const { return type_; }
  int64_t vocab_size() const { return vocab_size_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t num_tokens() const { return num_tokens_; }
  // REQUIRES: 0 <= document < num_documents().
  int64_t document_length(int64_t document) const;

  // Copies out.size() tokens of the document from `offset` on. REQUIRES: offset + out.size() <= document_length.
  // Errors: an id outside [0, vocab_size), with document and offset.
  Status read(int64_t document, int64_t offset, std::span<int32_t> out) const;

  // Reads every token once. Errors: as read().
  Status check_ids() const;

 private:
  TokenFile() = default;
  Status parse_index();
  Status check_sequences();
  int32_t length(int64_t sequence) const;
  int64_t pointer(int64_t sequence) const;
  int64_t first_sequence(int64_t document) const;
  Status convert(int64_t document, int64_t offset, std::span<const std::byte> bytes, std::span<int32_t> out) const;
  Error index_error(std::string problem, std::string hint = "") const;

  std::filesystem::path bin_path_, index_path_;
  MappedFile index_, tokens_;
  TokenType type_ = TokenType::kInt32;
  int64_t vocab_size_ = 0, num_sequences_ = 0, num_documents_ = 0, num_tokens_ = 0;
  // Views into the index. Bytes, because nothing in the file is aligned.
  std::span<const std::byte> lengths_;    // int32 per sequence
  std::span<const std::byte> pointers_;   // int64 per sequence: byte offset into .bin
  std::span<const std::byte> documents_;  // int64 per document and one more: its first sequence
};

// Streaming writer. The pair appears under its name only in finish(): .bin first, .idx last, each renamed from a
// temporary name, so a reader sees the whole pair or no index. Without finish() the temporary files are removed.
// Throws std::system_error when the disk fails.
class TokenFileWriter {
 public:
  // `path`: the pair's common name; its folder must exist.
  TokenFileWriter(const std::filesystem::path& path, TokenType type);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // REQUIRES: every id fits the type (checked), fewer than 2^31 tokens.
  void add_document(std::span<const int32_t> tokens);
  void finish();

  int64_t num_tokens() const { return num_tokens_; }

 private:
  std::filesystem::path bin_path_, index_path_, bin_temporary_, index_temporary_;
  TokenType type_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> bin_;
  std::vector<int32_t> lengths_;
  std::vector<std::byte> staging_;
  int64_t num_tokens_ = 0;
  bool finished_ = false;
};

}  // namespace fivefold
