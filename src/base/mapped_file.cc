#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace fivefold {

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::release_pages() const {
  // A private mapping that was only read has nothing to lose.
  if (!bytes_.empty()) madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return Error{path.string(), std::string("cannot open: ") + std::strerror(errno), ""};
  struct stat status{};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor);
    return Error{path.string(), "not a regular file", ""};
  }
  MappedFile file;
  const auto size = static_cast<size_t>(status.st_size);
  if (size > 0) {
    void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    const int error = errno;
    close(descriptor);
    if (address == MAP_FAILED) return Error{path.string(), std::string("cannot map: ") + std::strerror(error), ""};
    file.bytes_ = {static_cast<const std::byte*>(address), size};
  } else {
    close(descriptor);
  }
  return file;
}

}  // namespace fivefold
