#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#include "data/token_file.h"

namespace fivefold {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

[[noreturn]] void throw_errno(const std::filesystem::path& path) {
  throw std::system_error(errno, std::generic_category(), path.string());
}

File create(const std::filesystem::path& path) {
  File file(std::fopen(path.c_str(), "wb"), std::fclose);
  if (!file) throw_errno(path);
  return file;
}

void write(const File& file, const void* data, size_t bytes, const std::filesystem::path& path) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, file.get()) != bytes) throw_errno(path);
}

// On disk before the file gets its name, so that a crash leaves the whole file or none.
void close_synced(File file, const std::filesystem::path& path) {
  if (std::fflush(file.get()) != 0 || fsync(fileno(file.get())) != 0) throw_errno(path);
  if (std::fclose(file.release()) != 0) throw_errno(path);
}

template <typename T>
void store(std::byte* at, int32_t id) {
  FIVEFOLD_CHECK(static_cast<int64_t>(id) >= static_cast<int64_t>(std::numeric_limits<T>::min()) &&
                     static_cast<int64_t>(id) <= static_cast<int64_t>(std::numeric_limits<T>::max()),
                 fmt::format("token id {} does not fit the file's type", id));
  const T value = static_cast<T>(id);
  std::memcpy(at, &value, sizeof value);
}

void store(TokenType type, std::byte* at, int32_t id) {
  switch (type) {
    case TokenType::kUint8:
      return store<uint8_t>(at, id);
    case TokenType::kInt8:
      return store<int8_t>(at, id);
    case TokenType::kInt16:
      return store<int16_t>(at, id);
    case TokenType::kUint16:
      return store<uint16_t>(at, id);
    case TokenType::kInt32:
      return store<int32_t>(at, id);
    case TokenType::kInt64:
      return store<int64_t>(at, id);
  }
}

std::filesystem::path with_suffix(std::filesystem::path path, const std::string& suffix) {
  path += suffix;
  return path;
}

}  // namespace

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, TokenType type)
    : bin_path_(with_suffix(path, ".bin")),
      index_path_(with_suffix(path, ".idx")),
      type_(type),
      bin_(nullptr, std::fclose) {
  static std::atomic<int> count = 0;  // two writers of one process must not share a temporary name
  const std::string unique = fmt::format(".{}-{}.partial", getpid(), count++);
  bin_temporary_ = with_suffix(bin_path_, unique);
  index_temporary_ = with_suffix(index_path_, unique);
  bin_ = create(bin_temporary_);
}

TokenFileWriter::~TokenFileWriter() {
  if (finished_) return;
  bin_.reset();
  std::error_code ignored;
  std::filesystem::remove(bin_temporary_, ignored);
  std::filesystem::remove(index_temporary_, ignored);
}

void TokenFileWriter::add_document(std::span<const int32_t> tokens) {
  FIVEFOLD_CHECK(!finished_ && tokens.size() <= static_cast<size_t>(INT32_MAX));
  const auto size = static_cast<size_t>(token_type_bytes(type_));
  staging_.resize(tokens.size() * size);
  for (size_t i = 0; i < tokens.size(); ++i) store(type_, staging_.data() + i * size, tokens[i]);
  write(bin_, staging_.data(), staging_.size(), bin_temporary_);
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  num_tokens_ += static_cast<int64_t>(tokens.size());
}

void TokenFileWriter::finish() {
  FIVEFOLD_CHECK(!finished_);
  close_synced(std::move(bin_), bin_temporary_);

  File index = create(index_temporary_);
  const auto put = [&](const auto& value) { write(index, &value, sizeof value, index_temporary_); };
  write(index, "MMIDIDX\0\0", 9, index_temporary_);
  put(uint64_t{1});  // version
  put(static_cast<uint8_t>(type_));
  put(static_cast<uint64_t>(lengths_.size()));
  put(static_cast<uint64_t>(lengths_.size() + 1));
  write(index, lengths_.data(), lengths_.size() * sizeof(int32_t), index_temporary_);
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    put(pointer);
    pointer += length * token_type_bytes(type_);
  }
  for (int64_t document = 0; document <= static_cast<int64_t>(lengths_.size()); ++document) put(document);
  close_synced(std::move(index), index_temporary_);

  std::filesystem::rename(bin_temporary_, bin_path_);
  std::filesystem::rename(index_temporary_, index_path_);
  finished_ = true;
}

}  // namespace fivefold
