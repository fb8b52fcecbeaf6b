#include "store/file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace fivefold {
namespace {

// Closes a descriptor that is only read from or synced: close() cannot lose anything there.
class ScopedDescriptor {
 public:
  explicit ScopedDescriptor(int descriptor) : descriptor_(descriptor) {}
  ScopedDescriptor(const ScopedDescriptor&) = delete;
  ScopedDescriptor& operator=(const ScopedDescriptor&) = delete;
  ~ScopedDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

std::string reason(int error_number) { return std::generic_category().message(error_number); }

}  // namespace

StoreError::StoreError(const std::filesystem::path& path, std::string_view action, int error_number)
    : std::runtime_error(path.string() + ": cannot " + std::string(action) + ": " + reason(error_number) + " (errno " +
                         std::to_string(error_number) + ")"),
      path_(path),
      error_number_(error_number) {}

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw StoreError(path_, "create", errno);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  FIVEFOLD_CHECK(descriptor_ >= 0, "write to a closed file");
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw StoreError(path_, "write", errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::sync() {
  if (::fsync(descriptor_) != 0) throw StoreError(path_, "sync", errno);
}

void OutputFile::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) throw StoreError(path_, "close", errno);
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

void sync_folder(const std::filesystem::path& folder) {
  const ScopedDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0) throw StoreError(folder, "open", errno);
  if (::fsync(descriptor.get()) != 0) throw StoreError(folder, "sync", errno);
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw StoreError(to, "rename " + from.filename().string() + " to it", errno);
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw StoreError(folder, "create", error.value());
}

std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> entries;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  if (error) throw StoreError(folder, "list", error.value());
  return entries;
}

void remove_path(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw StoreError(path, "remove", error.value());
}

}  // namespace fivefold
