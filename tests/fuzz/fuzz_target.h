// What the fuzz targets share. A target is a file NAME_fuzz.cc with one function LLVMFuzzerTestOneInput, which hands
// its input to a parser and checks what must hold for any input; a check that fails aborts. README.md: how they are
// run.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/result.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fivefold::fuzz {

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// An error that a user can act on says where and what.
inline void check_error(const Error& error) {
  FIVEFOLD_CHECK(!error.where.empty() && !error.problem.empty(), error.message());
}

// Some parsers read several files. `count` parts of the input, cut at NUL bytes; the last one takes the rest.
inline std::vector<std::string_view> parts(std::string_view input, size_t count) {
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < count) {
    const size_t end = input.find('\0');
    parts.push_back(input.substr(0, end));
    input = end == std::string_view::npos ? std::string_view() : input.substr(end + 1);
  }
  parts.push_back(input);
  return parts;
}

// A folder in memory, for parsers that only take paths. Removed at exit.
class ScratchFolder {
 public:
  ScratchFolder() : path_("/dev/shm/fivefold-fuzz-" + std::to_string(getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const std::string& name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream stream(file, std::ios::binary | std::ios::trunc);
    stream.write(content.data(), static_cast<std::streamsize>(content.size()));
    FIVEFOLD_CHECK(stream.flush().good(), file.string());
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace fivefold::fuzz
