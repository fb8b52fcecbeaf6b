// Changing the disk, as the store needs it: an output file that reports every failure, and the moves that make a change
// durable (fsync of a folder, replacement by rename). POSIX only. No text, no formats. Reading is base/mapped_file.h: a
// mapping of a file that someone shortens raises SIGBUS, so fivefold never shortens a model or a checkpoint in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fivefold {

// The disk refused: full, read-only, missing folder, quota. what() is "PATH: cannot ACTION: REASON (errno N)".
class StoreError : public std::runtime_error {
 public:
  StoreError(const std::filesystem::path& path, std::string_view action, int error_number);

  const std::filesystem::path& path() const { return path_; }
  int error_number() const { return error_number_; }

 private:
  std::filesystem::path path_;
  int error_number_;
};

// Whether written bytes must survive a power cut before the call returns.
enum class Sync { kNo, kYes };

// A file being written from its start; what stood there before is gone. Every call throws StoreError on failure. The
// destructor closes without a report: call close() on the good path.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void sync();
  void close();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// The name of something directly in a folder: not empty, ".", "..", and without separators or NUL.
bool is_plain_file_name(std::string_view name);
// Makes renames, creations and removals inside `folder` durable. Throws StoreError.
void sync_folder(const std::filesystem::path& folder);
// rename(2): atomic, replaces `to`. Throws StoreError.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Creates the folder and its parents; no failure when it exists. Throws StoreError.
void make_folder(const std::filesystem::path& folder);
// Paths of what lies directly in `folder`, in no order. Throws StoreError.
std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder);
// Removes a file or a folder with all it holds; no failure when it is not there. Throws StoreError.
void remove_path(const std::filesystem::path& path);

}  // namespace fivefold
