// MappedFile: a whole file as read-only memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/result.h"

namespace fivefold {

// Movable; the bytes stay valid (and at the same address) until the owner dies.
class MappedFile {
 public:
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Errors: the file cannot be opened, is not a regular file, or cannot be mapped. An empty file is empty bytes.
  static Result<MappedFile> open(const std::filesystem::path& path);

  std::span<const std::byte> bytes() const { return bytes_; }
  // Gives back the memory of the pages that were read: they are read again when needed. What was copied out of a large
  // file then does not count for the process any more. Thread-safe.
  void release_pages() const;
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace fivefold
