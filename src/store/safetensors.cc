#include "store/safetensors.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "store/json_input.h"

namespace fivefold {
namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kTruncatedHint = "the file is truncated, or is not a safetensors file";

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr std::array kDTypeNames = {
    DTypeName{DType::kFloat64, "F64"},        DTypeName{DType::kFloat32, "F32"},
    DTypeName{DType::kFloat16, "F16"},        DTypeName{DType::kBFloat16, "BF16"},
    DTypeName{DType::kInt64, "I64"},          DTypeName{DType::kInt32, "I32"},
    DTypeName{DType::kInt16, "I16"},          DTypeName{DType::kInt8, "I8"},
    DTypeName{DType::kUint8, "U8"},           DTypeName{DType::kBool, "BOOL"},
    DTypeName{DType::kFloat8E4M3, "F8_E4M3"}, DTypeName{DType::kFloat8E5M2, "F8_E5M2"},
};

std::string supported_dtypes() {
  std::string text = "supported:";
  for (const DTypeName& entry : kDTypeNames) text += " " + std::string(entry.name);
  return text;
}

std::string range_text(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

// The JSON header's text, after the checks of its length.
Result<std::string_view> header_text(std::span<const std::byte> file, const std::string& file_name) {
  const auto size = static_cast<uint64_t>(file.size());
  if (size < kLengthBytes)
    return Error{file_name,
                 "has " + std::to_string(size) + " bytes; a safetensors file begins with 8 bytes of header length",
                 kTruncatedHint};
  uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i) length |= static_cast<uint64_t>(file[i]) << (8 * i);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes))
    return Error{file_name,
                 "header length " + std::to_string(length) + " exceeds the format's limit of " +
                     std::to_string(kMaxSafetensorsHeaderBytes) + " bytes",
                 "not a safetensors file, or damaged in its first 8 bytes"};
  if (length > size - kLengthBytes)
    return Error{file_name,
                 "header of " + std::to_string(length) + " bytes runs past the end of the file (" +
                     std::to_string(size) + " bytes)",
                 kTruncatedHint};
  const auto* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  if (length == 0 || *text != '{') return Error{file_name, "header does not start with '{'", ""};
  return std::string_view(text, length);
}

Result<std::map<std::string, std::string>> parse_metadata(const json& value, const std::string& where) {
  if (!value.is_object()) return Error{where, "must be an object", ""};
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) return Error{where, "value of '" + key + "' must be text", ""};
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

Result<TensorInfo> parse_tensor(const std::string& name, const json& value, int64_t data_bytes,
                                const std::string& where) {
  if (!value.is_object()) return Error{where, "must be an object", ""};
  TensorInfo tensor;
  tensor.name = name;
  FIVEFOLD_ASSIGN(const std::string dtype_name, json_string_field(value, "dtype", where));
  const auto dtype = parse_safetensors_dtype(dtype_name);
  if (!dtype) return Error{where, "dtype '" + dtype_name + "' is not supported", supported_dtypes()};
  tensor.dtype = *dtype;
  FIVEFOLD_ASSIGN(tensor.shape, json_shape_field(value, "shape", where));
  const auto bytes = checked_tensor_bytes(tensor.dtype, tensor.shape);
  if (!bytes) return Error{where, "shape " + value["shape"].dump() + " has more bytes than fit in 63 bits", ""};
  FIVEFOLD_ASSIGN(const auto range, json_range_field(value, "data_offsets", where));
  std::tie(tensor.begin, tensor.end) = range;
  if (tensor.end > data_bytes)
    return Error{where,
                 "bytes " + range_text(tensor.begin, tensor.end) + " run past the end of the data (" +
                     std::to_string(data_bytes) + " bytes)",
                 kTruncatedHint};
  if (tensor.end - tensor.begin != *bytes)
    return Error{where,
                 "has " + std::to_string(tensor.end - tensor.begin) + " bytes, but " + dtype_name + " " +
                     value["shape"].dump() + " needs " + std::to_string(*bytes),
                 ""};
  return tensor;
}

// REQUIRES: tensors are ordered by their bytes.
Status check_coverage(const std::vector<TensorInfo>& tensors, int64_t data_bytes, const std::string& file_name) {
  int64_t covered = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : tensors) {
    const std::string where = file_name + " (" + tensor.name + ")";
    if (tensor.begin < covered)
      return Error{where,
                   "bytes " + range_text(tensor.begin, tensor.end) + " overlap those of '" + previous->name + "'", ""};
    if (tensor.begin > covered)
      return Error{where, "bytes " + range_text(covered, tensor.begin) + " before it belong to no tensor", ""};
    covered = tensor.end;
    previous = &tensor;
  }
  if (covered != data_bytes)
    return Error{file_name, "the last " + std::to_string(data_bytes - covered) + " bytes belong to no tensor", ""};
  return Ok{};
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  for (const DTypeName& entry : kDTypeNames)
    if (entry.dtype == dtype) return entry.name;
  FIVEFOLD_CHECK(false, "dtype without a safetensors name");
}

std::optional<DType> parse_safetensors_dtype(std::string_view name) {
  for (const DTypeName& entry : kDTypeNames)
    if (entry.name == name) return entry.dtype;
  return std::nullopt;
}

std::optional<int64_t> checked_tensor_bytes(DType dtype, std::span<const int64_t> shape) {
  int64_t bytes = dtype_bytes(dtype);
  for (const int64_t dim : shape)
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  return bytes;
}

int64_t TensorDeclaration::bytes() const {
  const auto size = checked_tensor_bytes(dtype, shape);
  FIVEFOLD_CHECK(size.has_value(), name + ": impossible shape");
  return *size;
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, const std::string& file_name) {
  FIVEFOLD_ASSIGN(const std::string_view text, header_text(file, file_name));
  FIVEFOLD_ASSIGN(const json root, parse_json_object(text, "header", file_name));
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + static_cast<int64_t>(text.size());
  const int64_t data_bytes = static_cast<int64_t>(file.size()) - header.data_begin;
  for (const auto& [name, value] : root.items()) {
    const std::string where = file_name + " (" + name + ")";
    if (name == kMetadataKey) {
      FIVEFOLD_ASSIGN(header.metadata, parse_metadata(value, where));
      continue;
    }
    FIVEFOLD_ASSIGN(TensorInfo tensor, parse_tensor(name, value, data_bytes, where));
    header.tensors.push_back(std::move(tensor));
  }
  std::ranges::sort(header.tensors, {}, [](const TensorInfo& t) { return std::pair(t.begin, t.end); });
  FIVEFOLD_TRY(check_coverage(header.tensors, data_bytes, file_name));
  return header;
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path, MappedFile file, SafetensorsHeader header)
    : path_(std::move(path)), file_(std::move(file)), header_(std::move(header)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  FIVEFOLD_ASSIGN(MappedFile file, MappedFile::open(path));
  FIVEFOLD_ASSIGN(SafetensorsHeader header, parse_safetensors(file.bytes(), path.string()));
  return SafetensorsFile(path, std::move(file), std::move(header));
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const {
  return file_.bytes().subspan(static_cast<size_t>(header_.data_begin + tensor.begin),
                               static_cast<size_t>(tensor.end - tensor.begin));
}

}  // namespace fivefold
