// Reading of GGUF, the file of llama.cpp: a header, typed metadata, tensor descriptions, then the tensors' bytes at
// aligned offsets (docs/gguf.md of ggml; versions 2 and 3, little-endian). The file is untrusted: every count, length,
// shape and offset is checked against the file and against overflow before use.
//
// This header knows the container. What the metadata say of a model is store/gguf_model.h, of a tokenizer
// store/gguf_tokenizer.h.
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
#include "store/gguf_blocks.h"

namespace fivefold {

// By their number in a file. The number of an array is that of its elements, with `is_array` beside it.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// A value as it lies in the file, checked to be whole. Decoded by the accessors of GgufFile.
struct GgufValue {
  GgufValueType type = GgufValueType::kUint8;
  bool is_array = false;
  int64_t count = 1;                 // of elements
  std::span<const std::byte> bytes;  // strings: 8 bytes of length before each
};

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape;  // outermost dim first: the file has them the other way round
  int64_t begin = 0, end = 0;  // bytes in the data section

  int64_t numel() const;
};

struct GgufHeader {
  uint32_t version = 0;
  int64_t alignment = 32;
  int64_t data_begin = 0;  // byte offset of the data section in the file
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;  // in the file's order
};

// Reads and checks the header of a whole file's bytes, into which the result points. Errors (where: `file_name`, and
// the key or tensor where there is one): not GGUF, version 1 or unknown, big-endian, counts or lengths beyond the file,
// unknown value type, an array of arrays, a key or tensor twice, names that are not UTF-8, an alignment that is not a
// power of two; a tensor of a type that is not read, with no or over four dims, with a dim below 1, rows that are not
// whole blocks, more bytes than 63 bits, at an unaligned offset, beyond the file, or over another one's bytes.
Result<GgufHeader> parse_gguf(std::span<const std::byte> file, const std::string& file_name);

// A mapped file with its checked header. Movable; safe to read from several threads.
class GgufFile {
 public:
  // Errors: those of MappedFile::open and parse_gguf.
  static Result<GgufFile> open(const std::filesystem::path& path);
  // Of bytes that outlive it.
  static Result<GgufFile> of_bytes(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  uint32_t version() const { return header_.version; }
  int64_t alignment() const { return header_.alignment; }
  int64_t data_begin() const { return header_.data_begin; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return header_.metadata; }
  const std::vector<GgufTensor>& tensors() const { return header_.tensors; }

  bool has(std::string_view key) const { return header_.metadata.contains(key); }
  // "FILE (KEY)", for errors about a value.
  std::string place(std::string_view key) const;
  // Values by key. Errors: no such key, another type, integers beyond int64_t, text that is not UTF-8.
  Result<int64_t> integer(std::string_view key) const;
  // An fp32 value as the shortest decimal that is equal to it in fp32: 1e-05 and not 9.99999974e-06. Integers too.
  Result<double> number(std::string_view key) const;
  Result<bool> boolean(std::string_view key) const;
  Result<std::string> text(std::string_view key) const;
  Result<std::vector<std::string>> texts(std::string_view key) const;
  Result<std::vector<int64_t>> integers(std::string_view key) const;
  // The same, where a missing key gives the fallback.
  Result<int64_t> integer_or(std::string_view key, int64_t fallback) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> text_or(std::string_view key, const std::string& fallback) const;

  // nullptr when the file has no such tensor. Valid as long as the file object is not moved or destroyed.
  const GgufTensor* find(std::string_view name) const;
  std::span<const std::byte> bytes(const GgufTensor& tensor) const;
  // Values [row * columns, (row + rows) * columns) in fp32, where columns is the innermost dim.
  // REQUIRES: the rows exist and fill `values` (checked).
  void read_rows(const GgufTensor& tensor, int64_t row, int64_t rows, std::span<float> values) const;

 private:
  GgufFile() = default;
  Result<const GgufValue*> value(std::string_view key, bool is_array) const;

  std::string name_;
  MappedFile file_;
  std::span<const std::byte> bytes_;
  GgufHeader header_;
  std::map<std::string, size_t, std::less<>> index_;  // of tensors
};

}  // namespace fivefold
