// The accessors of GgufFile.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "store/gguf.h"
#include "store/utf8_check.h"

namespace fivefold {
namespace {

template <typename T>
T load(const GgufValue& value, int64_t index) {
  T element;
  std::memcpy(&element, value.bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof element);
  return element;
}

// Element `index` as an integer; nothing when the type has none, or it does not fit.
std::optional<int64_t> integer_at(const GgufValue& value, int64_t index) {
  switch (value.type) {
    case GgufValueType::kUint8:
      return load<uint8_t>(value, index);
    case GgufValueType::kInt8:
      return load<int8_t>(value, index);
    case GgufValueType::kUint16:
      return load<uint16_t>(value, index);
    case GgufValueType::kInt16:
      return load<int16_t>(value, index);
    case GgufValueType::kUint32:
      return load<uint32_t>(value, index);
    case GgufValueType::kInt32:
      return load<int32_t>(value, index);
    case GgufValueType::kInt64:
      return load<int64_t>(value, index);
    case GgufValueType::kUint64: {
      const auto large = load<uint64_t>(value, index);
      return large <= static_cast<uint64_t>(INT64_MAX) ? std::optional(static_cast<int64_t>(large)) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

// The texts of a string value, in order.
std::vector<std::string_view> split_texts(const GgufValue& value) {
  std::vector<std::string_view> texts;
  texts.reserve(static_cast<size_t>(value.count));
  const std::string_view bytes(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    texts.push_back(bytes.substr(at + sizeof length, length));
    at += sizeof length + length;
  }
  return texts;
}

}  // namespace

int64_t GgufTensor::numel() const {
  int64_t numel = 1;
  for (const int64_t dim : shape) numel *= dim;
  return numel;
}

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  FIVEFOLD_ASSIGN(MappedFile mapped, MappedFile::open(path));
  FIVEFOLD_ASSIGN(GgufFile file, of_bytes(mapped.bytes(), path.string()));
  file.file_ = std::move(mapped);
  return file;
}

Result<GgufFile> GgufFile::of_bytes(std::span<const std::byte> bytes, std::string name) {
  GgufFile file;
  FIVEFOLD_ASSIGN(file.header_, parse_gguf(bytes, name));
  file.name_ = std::move(name);
  file.bytes_ = bytes;
  for (size_t i = 0; i < file.header_.tensors.size(); ++i) file.index_[file.header_.tensors[i].name] = i;
  return file;
}

std::string GgufFile::place(std::string_view key) const { return fmt::format("{} ({})", name_, key); }

Result<const GgufValue*> GgufFile::value(std::string_view key, bool is_array) const {
  const auto found = header_.metadata.find(key);
  if (found == header_.metadata.end()) return Error{name_, fmt::format("has no '{}'", key), ""};
  if (found->second.is_array != is_array)
    return Error{place(key), is_array ? "is not a list" : "is a list, not one value", ""};
  return &found->second;
}

Result<int64_t> GgufFile::integer(std::string_view key) const {
  FIVEFOLD_ASSIGN(const GgufValue* found, value(key, false));
  const auto integer = integer_at(*found, 0);
  if (!integer) return Error{place(key), "is not an integer below 2^63", ""};
  return *integer;
}

Result<double> GgufFile::number(std::string_view key) const {
  FIVEFOLD_ASSIGN(const GgufValue* found, value(key, false));
  double number = 0;
  if (found->type == GgufValueType::kFloat32) {
    number = std::strtod(fmt::format("{}", load<float>(*found, 0)).c_str(), nullptr);
  } else if (found->type == GgufValueType::kFloat64) {
    number = load<double>(*found, 0);
  } else if (const auto integer = integer_at(*found, 0)) {
    number = static_cast<double>(*integer);
  } else {
    return Error{place(key), "is not a number", ""};
  }
  if (!std::isfinite(number)) return Error{place(key), fmt::format("is {}", number), ""};
  return number;
}

Result<bool> GgufFile::boolean(std::string_view key) const {
  FIVEFOLD_ASSIGN(const GgufValue* found, value(key, false));
  const auto byte = found->type == GgufValueType::kBool ? load<uint8_t>(*found, 0) : uint8_t{2};
  if (byte > 1) return Error{place(key), "is not true or false", ""};
  return byte == 1;
}

Result<std::string> GgufFile::text(std::string_view key) const {
  FIVEFOLD_ASSIGN(const GgufValue* found, value(key, false));
  if (found->type != GgufValueType::kString) return Error{place(key), "is not text", ""};
  const std::string_view text = split_texts(*found).front();
  if (!is_utf8(text)) return Error{place(key), "is not UTF-8", ""};
  return std::string(text);
}

Result<std::vector<std::string>> GgufFile::texts(std::string_view key) const {
  FIVEFOLD_ASSIGN(const GgufValue* found, value(key, true));
  if (found->type != GgufValueType::kString) return Error{place(key), "is not a list of texts", ""};
  std::vector<std::string> texts;
  for (const std::string_view text : split_texts(*found)) {
    if (!is_utf8(text)) return Error{place(key), fmt::format("entry {} is not UTF-8", texts.size()), ""};
    texts.emplace_back(text);
  }
  return texts;
}

Result<std::vector<int64_t>> GgufFile::integers(std::string_view key) const {
  FIVEFOLD_ASSIGN(const GgufValue* found, value(key, true));
  std::vector<int64_t> integers;
  for (int64_t i = 0; i < found->count; ++i) {
    const auto integer = integer_at(*found, i);
    if (!integer) return Error{place(key), "is not a list of integers below 2^63", ""};
    integers.push_back(*integer);
  }
  return integers;
}

Result<int64_t> GgufFile::integer_or(std::string_view key, int64_t fallback) const {
  return has(key) ? integer(key) : fallback;
}
Result<double> GgufFile::number_or(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}
Result<bool> GgufFile::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? boolean(key) : fallback;
}
Result<std::string> GgufFile::text_or(std::string_view key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

std::span<const std::byte> GgufFile::bytes(const GgufTensor& tensor) const {
  return bytes_.subspan(static_cast<size_t>(header_.data_begin + tensor.begin),
                        static_cast<size_t>(tensor.end - tensor.begin));
}

void GgufFile::read_rows(const GgufTensor& tensor, int64_t row, int64_t rows, std::span<float> values) const {
  const int64_t columns = tensor.shape.back();
  FIVEFOLD_CHECK(row >= 0 && rows >= 0 && row <= tensor.numel() / columns - rows &&
                 static_cast<int64_t>(values.size()) == rows * columns);
  const GgufBlock& block = gguf_block(tensor.type);
  const auto row_bytes = static_cast<size_t>(columns / block.values * block.bytes);
  dequantise(tensor.type,
             bytes(tensor).subspan(static_cast<size_t>(row) * row_bytes, static_cast<size_t>(rows) * row_bytes),
             values);
}

}  // namespace fivefold
