#include "data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace fivefold {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and mapped as they are");

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersion = 1;
constexpr size_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;  // magic, version, type, sequences, document index entries

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
T element(std::span<const std::byte> bytes, int64_t index) {
  return load<T>(bytes.data() + static_cast<size_t>(index) * sizeof(T));
}

// Calls body(T{}) with the element type of the file.
template <typename Body>
auto with_type(TokenType type, Body body) {
  switch (type) {
    case TokenType::kUint8:
      return body(uint8_t{});
    case TokenType::kInt8:
      return body(int8_t{});
    case TokenType::kInt16:
      return body(int16_t{});
    case TokenType::kUint16:
      return body(uint16_t{});
    case TokenType::kInt32:
      return body(int32_t{});
    case TokenType::kInt64:
      return body(int64_t{});
  }
  FIVEFOLD_CHECK(false);
}

Result<TokenType> parse_type(uint8_t code, const std::string& where) {
  if (code == 6 || code == 7)
    return Error{where, fmt::format("element type {} is floating point, not token ids", code), ""};
  if (code < 1 || code > 8) return Error{where, fmt::format("unknown element type {}", code), "known: 1-5 and 8"};
  return static_cast<TokenType>(code);
}

}  // namespace

Error TokenFile::index_error(std::string problem, std::string hint) const {
  return Error{index_path_.string(), std::move(problem), std::move(hint)};
}

Result<TokenFile> TokenFile::open(const std::filesystem::path& path, int64_t vocab_size) {
  TokenFile file;
  std::filesystem::path stem = path;
  if (stem.extension() == ".bin" || stem.extension() == ".idx") stem.replace_extension();
  file.bin_path_ = stem;
  file.bin_path_ += ".bin";
  file.index_path_ = stem;
  file.index_path_ += ".idx";
  file.vocab_size_ = vocab_size;
  if (vocab_size < 1 || vocab_size > int64_t{INT32_MAX} + 1) {
    return Error{path.string(), fmt::format("vocabulary of {} is not between 1 and 2^31", vocab_size), ""};
  }
  FIVEFOLD_ASSIGN(file.index_, MappedFile::open(file.index_path_));
  FIVEFOLD_ASSIGN(file.tokens_, MappedFile::open(file.bin_path_));
  FIVEFOLD_TRY(file.parse_index());
  FIVEFOLD_TRY(file.check_sequences());
  return file;
}

// Header, and that the counts are those of a file of this size.
Status TokenFile::parse_index() {
  const std::span<const std::byte> bytes = index_.bytes();
  if (bytes.size() < kHeaderBytes) {
    return index_error(fmt::format("has {} bytes, a header has {}", bytes.size(), kHeaderBytes));
  }
  if (index_.text().substr(0, kMagic.size()) != kMagic) {
    return index_error("does not start with MMIDIDX", "only Megatron's indexed format is read");
  }
  const auto version = load<uint64_t>(bytes.data() + 9);
  if (version != kVersion) return index_error(fmt::format("version {} is not known", version), "known: 1");
  FIVEFOLD_ASSIGN(type_, parse_type(load<uint8_t>(bytes.data() + 17), index_path_.string()));
  const auto sequences = load<uint64_t>(bytes.data() + 18);
  const auto entries = load<uint64_t>(bytes.data() + 26);
  const size_t body = bytes.size() - kHeaderBytes;
  if (sequences > body / 12 || entries > (body - 12 * sequences) / 8 || 12 * sequences + 8 * entries != body) {
    return index_error(fmt::format("{} sequences and {} document entries need another file size than {} bytes",
                                   sequences, entries, bytes.size()),
                       "the file is cut off or its header is damaged");
  }
  if (entries == 0) return index_error("the document index is empty", "it has one entry more than there are documents");
  num_sequences_ = static_cast<int64_t>(sequences);
  num_documents_ = static_cast<int64_t>(entries) - 1;
  lengths_ = bytes.subspan(kHeaderBytes, 4 * sequences);
  pointers_ = bytes.subspan(kHeaderBytes + 4 * sequences, 8 * sequences);
  documents_ = bytes.subspan(kHeaderBytes + 12 * sequences);
  return Ok{};
}

// Lengths, pointers and document index, so that every later access is in range.
Status TokenFile::check_sequences() {
  const int64_t size = token_type_bytes(type_);
  const auto bin_bytes = static_cast<int64_t>(tokens_.bytes().size());
  for (int64_t i = 0; i < num_sequences_; ++i) {
    if (length(i) < 0) return index_error(fmt::format("sequence {} has length {}", i, length(i)));
    const int64_t bytes = length(i) * size;
    if (pointer(i) < 0 || pointer(i) % size != 0 || pointer(i) > bin_bytes || bytes > bin_bytes - pointer(i)) {
      return index_error(fmt::format("sequence {} ({} tokens at byte {}) lies outside the {} bytes of {}", i, length(i),
                                     pointer(i), bin_bytes, bin_path_.string()));
    }
    num_tokens_ += length(i);
  }
  for (int64_t d = 0; d <= num_documents_; ++d) {
    const int64_t least = d == 0 ? 0 : first_sequence(d - 1);
    const int64_t most = d == 0 ? 0 : num_sequences_;
    if (first_sequence(d) < least || first_sequence(d) > most) {
      return index_error(
          fmt::format("document {} starts at sequence {}, outside [{}, {}]", d, first_sequence(d), least, most));
    }
  }
  if (first_sequence(num_documents_) != num_sequences_) {
    return index_error(
        fmt::format("the documents end at sequence {} of {}", first_sequence(num_documents_), num_sequences_));
  }
  if (num_tokens_ > bin_bytes / size || num_tokens_ * size != bin_bytes) {
    return Error{bin_path_.string(), fmt::format("has {} bytes, the index describes {}", bin_bytes, num_tokens_ * size),
                 "the two files are not of one run, or one is cut off"};
  }
  return Ok{};
}

int32_t TokenFile::length(int64_t sequence) const { return element<int32_t>(lengths_, sequence); }
int64_t TokenFile::pointer(int64_t sequence) const { return element<int64_t>(pointers_, sequence); }
int64_t TokenFile::first_sequence(int64_t document) const { return element<int64_t>(documents_, document); }

int64_t TokenFile::document_length(int64_t document) const {
  FIVEFOLD_CHECK(document >= 0 && document < num_documents_);
  int64_t total = 0;
  for (int64_t i = first_sequence(document); i < first_sequence(document + 1); ++i) total += length(i);
  return total;
}

Status TokenFile::convert(int64_t document, int64_t offset, std::span<const std::byte> bytes,
                          std::span<int32_t> out) const {
  return with_type(type_, [&]<typename T>(T) -> Status {
    for (size_t i = 0; i < out.size(); ++i) {
      const auto id = static_cast<int64_t>(load<T>(bytes.data() + i * sizeof(T)));
      if (id < 0 || id >= vocab_size_) [[unlikely]] {
        return Error{bin_path_.string(),
                     fmt::format("document {}, token {}: id {} is outside the vocabulary of {}", document,
                                 offset + static_cast<int64_t>(i), id, vocab_size_),
                     "the file was made with another tokenizer"};
      }
      out[i] = static_cast<int32_t>(id);
    }
    return Ok{};
  });
}

Status TokenFile::read(int64_t document, int64_t offset, std::span<int32_t> out) const {
  FIVEFOLD_CHECK(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= document_length(document));
  const int64_t size = token_type_bytes(type_);
  int64_t sequence_start = 0;  // within the document
  for (int64_t i = first_sequence(document); !out.empty(); sequence_start += length(i), ++i) {
    const int64_t skip = offset - sequence_start;
    if (skip >= length(i)) continue;
    const int64_t count = std::min<int64_t>(length(i) - skip, static_cast<int64_t>(out.size()));
    FIVEFOLD_TRY(convert(
        document, offset,
        tokens_.bytes().subspan(static_cast<size_t>(pointer(i) + skip * size), static_cast<size_t>(count * size)),
        out.first(static_cast<size_t>(count))));
    out = out.subspan(static_cast<size_t>(count));
    offset += count;
  }
  return Ok{};
}

Status TokenFile::check_ids() const {
  std::vector<int32_t> buffer(16384);
  for (int64_t d = 0; d < num_documents_; ++d) {
    const int64_t total = document_length(d);
    for (int64_t offset = 0; offset < total; offset += static_cast<int64_t>(buffer.size())) {
      const size_t count = static_cast<size_t>(std::min<int64_t>(total - offset, static_cast<int64_t>(buffer.size())));
      FIVEFOLD_TRY(read(d, offset, std::span(buffer).first(count)));
    }
  }
  return Ok{};
}

}  // namespace fivefold
