// Writing of one safetensors file as a stream: tensors are declared first, then their bytes follow in that order, in as
// many portions as the caller likes. Memory use is that of the header. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/file_io.h"
#include "store/safetensors.h"

namespace fivefold {

// The file's first bytes: length and JSON header, padded with spaces to a multiple of 8.
// REQUIRES: names are unique and not "__metadata__" (checked).
std::string safetensors_header_bytes(std::span<const TensorDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata);

class SafetensorsWriter {
 public:
  // Writes the header. Throws StoreError, as every call does when the disk refuses.
  // REQUIRES: as safetensors_header_bytes.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorDeclaration> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // The next bytes of tensor `name`. REQUIRES: `name` is the tensor whose turn it is and has room for them (checked).
  void write(std::string_view name, std::span<const std::byte> bytes);
  // Ends the file. REQUIRES: every declared byte was written (checked).
  void finish(Sync sync);

 private:
  void skip_full_tensors();

  std::vector<TensorDeclaration> tensors_;
  OutputFile file_;
  size_t next_ = 0;            // tensor whose turn it is
  int64_t written_bytes_ = 0;  // of that tensor
};

}  // namespace fivefold
