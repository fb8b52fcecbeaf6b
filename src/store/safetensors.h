// Reading of safetensors files: 8 bytes of little-endian header length, a JSON header, the tensors' bytes back to back.
// The file is untrusted: every length, shape and offset is checked before use, and no input crashes the reader.
// A file with a dtype that DType does not have is refused by the tensor's name.
//
// Bytes are handed out as they lie in the file: little-endian, not necessarily aligned to the element size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "spec/enums.h"

namespace fivefold {

// Longest header that the format allows.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// "F32", "BF16", ...: the format's names of our dtypes.
std::string_view safetensors_name(DType dtype);
std::optional<DType> parse_safetensors_dtype(std::string_view name);

// numel * dtype size; nothing when a dim is negative or the product does not fit in int64_t.
std::optional<int64_t> checked_tensor_bytes(DType dtype, std::span<const int64_t> shape);

// A tensor before it has a place: what a writer needs to know of it.
struct TensorDeclaration {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // empty: a scalar

  // REQUIRES: the size fits in int64_t (checked).
  int64_t bytes() const;
  bool operator==(const TensorDeclaration&) const = default;
};

// A tensor in a file; [begin, end) is its byte range in the data section.
struct TensorInfo : TensorDeclaration {
  int64_t begin = 0;
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;  // byte offset of the data section in the file
};

// Reads and checks the header of a whole file's bytes. Errors name `file_name` and, where there is one, the tensor:
// too short, header too long, not JSON, duplicate keys, wrong types, bad shapes, ranges that overlap, leave holes, do
// not match shape and dtype, or do not cover the data.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, const std::string& file_name);

// A mapped file with its checked header. Movable; safe to read from several threads.
class SafetensorsFile {
 public:
  // Errors: those of MappedFile::open and parse_safetensors.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  // nullptr when the file has no such tensor. Valid as long as the file object is not moved or destroyed.
  const TensorInfo* find(std::string_view name) const;
  // MappedFile's: what was read no longer counts for the process's memory.
  void release_pages() const { file_.release_pages(); }
  // The bytes of one of tensors(), valid as long as the mapping (it survives a move of the file object).
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;

 private:
  SafetensorsFile(std::filesystem::path path, MappedFile file, SafetensorsHeader header);

  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace fivefold
