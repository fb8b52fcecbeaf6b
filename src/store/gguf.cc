#include "store/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "base/integer.h"
#include "store/utf8_check.h"

namespace fivefold {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian and read as they are");

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kArrayType = 9;
constexpr size_t kMaxDims = 4;
constexpr int64_t kMaxAlignment = int64_t{1} << 20;
constexpr const char* kTruncatedHint = "the file is cut off or damaged";

// The least bytes that an entry of the file takes, by which counts are bounded before anything is reserved.
constexpr uint64_t kLeastPairBytes = 8 + 4 + 1;            // empty key, type, one byte
constexpr uint64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;  // empty name, one dim, type, offset

std::optional<int64_t> value_bytes(uint32_t type) {
  switch (type) {
    case 0:
    case 1:
    case 7:
      return 1;
    case 2:
    case 3:
      return 2;
    case 4:
    case 5:
    case 6:
      return 4;
    case 10:
    case 11:
    case 12:
      return 8;
    default:
      return std::nullopt;
  }
}

// Reads forward through the file; what is beyond its end is an error that says what was wanted.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  size_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  Result<std::span<const std::byte>> take(uint64_t count, const std::string& what) {
    if (count > left())
      return Error{where_,
                   what + ": " + std::to_string(count) + " bytes at byte " + std::to_string(position_) +
                       " run past the end of the file (" + std::to_string(bytes_.size()) + " bytes)",
                   kTruncatedHint};
    const auto taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  template <typename T>
  Result<T> number(const std::string& what) {
    FIVEFOLD_ASSIGN(const auto bytes, take(sizeof(T), what));
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  Result<std::string_view> text(const std::string& what) {
    FIVEFOLD_ASSIGN(const auto length, number<uint64_t>("length of " + what));
    FIVEFOLD_ASSIGN(const auto bytes, take(length, what));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
  size_t position_ = 0;
};

Result<GgufValue> parse_elements(Cursor& cursor, uint32_t type, uint64_t count, std::span<const std::byte> file,
                                 const std::string& where) {
  const std::string what = "value of " + where;
  GgufValue value;
  value.type = static_cast<GgufValueType>(type);
  value.count = static_cast<int64_t>(count);
  if (value.type == GgufValueType::kString) {
    const size_t begin = cursor.position();
    for (uint64_t i = 0; i < count; ++i) FIVEFOLD_TRY(cursor.text(what));
    value.bytes = file.subspan(begin, cursor.position() - begin);
    return value;
  }
  const auto size = value_bytes(type);
  if (!size) return Error{where, "value type " + std::to_string(type) + " is not known", ""};
  FIVEFOLD_ASSIGN(value.bytes, cursor.take(count * static_cast<uint64_t>(*size), what));
  return value;
}

Result<GgufValue> parse_value(Cursor& cursor, std::span<const std::byte> file, const std::string& where) {
  FIVEFOLD_ASSIGN(const auto type, cursor.number<uint32_t>("type of " + where));
  if (type != kArrayType) return parse_elements(cursor, type, 1, file, where);
  FIVEFOLD_ASSIGN(const auto element, cursor.number<uint32_t>("element type of " + where));
  FIVEFOLD_ASSIGN(const auto count, cursor.number<uint64_t>("length of " + where));
  if (element == kArrayType) return Error{where, "an array of arrays is not read", ""};
  // An element has at least a byte: the product with its size stays within 64 bits.
  if (count > cursor.left())
    return Error{where, std::to_string(count) + " elements run past the end of the file", kTruncatedHint};
  FIVEFOLD_ASSIGN(GgufValue value, parse_elements(cursor, element, count, file, where));
  value.is_array = true;
  return value;
}

Result<std::string> parse_name(Cursor& cursor, const std::string& what, const std::string& where) {
  FIVEFOLD_ASSIGN(const std::string_view name, cursor.text(what));
  if (name.empty()) return Error{where, what + " is empty", ""};
  if (!is_utf8(name) || name.find('\0') != std::string_view::npos)
    return Error{where, what + " is not UTF-8 text", kTruncatedHint};
  return std::string(name);
}

Result<GgufTensor> parse_tensor(Cursor& cursor, int64_t alignment, const std::string& file_name) {
  GgufTensor tensor;
  FIVEFOLD_ASSIGN(tensor.name, parse_name(cursor, "a tensor's name", file_name));
  const std::string where = file_name + " (" + tensor.name + ")";
  FIVEFOLD_ASSIGN(const auto dims, cursor.number<uint32_t>("dims of " + tensor.name));
  if (dims < 1 || dims > kMaxDims)
    return Error{where, "has " + std::to_string(dims) + " dims, not 1 to " + std::to_string(kMaxDims), ""};
  for (uint32_t i = 0; i < dims; ++i) {
    FIVEFOLD_ASSIGN(const auto dim, cursor.number<uint64_t>("dims of " + tensor.name));
    if (dim < 1 || dim > static_cast<uint64_t>(INT64_MAX))
      return Error{where, "dim " + std::to_string(dim) + " is not between 1 and 2^63 - 1", ""};
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
  }
  FIVEFOLD_ASSIGN(const auto type, cursor.number<uint32_t>("type of " + tensor.name));
  const auto known = gguf_type(type);
  if (!known)
    return Error{where, "type " + describe_gguf_type(type) + " is not read", "read are " + known_gguf_types()};
  tensor.type = *known;
  const GgufBlock& block = gguf_block(tensor.type);
  if (tensor.shape.back() % block.values != 0)
    return Error{where,
                 "rows of " + std::to_string(tensor.shape.back()) + " values are not whole " + std::string(block.name) +
                     " blocks of " + std::to_string(block.values),
                 ""};
  int64_t bytes = block.bytes;
  bool fits = !__builtin_mul_overflow(tensor.shape.back() / block.values, bytes, &bytes);
  for (size_t i = 0; i + 1 < tensor.shape.size() && fits; ++i)
    fits = !__builtin_mul_overflow(tensor.shape[i], bytes, &bytes);
  FIVEFOLD_ASSIGN(const auto offset, cursor.number<uint64_t>("offset of " + tensor.name));
  if (!fits || offset > static_cast<uint64_t>(INT64_MAX) ||
      __builtin_add_overflow(static_cast<int64_t>(offset), bytes, &tensor.end))
    return Error{where, "ends beyond 63 bits", ""};
  tensor.begin = static_cast<int64_t>(offset);
  if (tensor.begin % alignment != 0)
    return Error{
        where,
        "offset " + std::to_string(tensor.begin) + " is not a multiple of the alignment " + std::to_string(alignment),
        ""};
  return tensor;
}

// Every tensor inside the data and over no other one's bytes.
Status check_ranges(const std::vector<GgufTensor>& tensors, int64_t data_bytes, const std::string& file_name) {
  std::vector<const GgufTensor*> sorted;
  for (const GgufTensor& tensor : tensors) {
    if (tensor.end > data_bytes)
      return Error{file_name + " (" + tensor.name + ")",
                   "bytes [" + std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) +
                       ") run past the data of " + std::to_string(data_bytes) + " bytes",
                   "the download is incomplete"};
    sorted.push_back(&tensor);
  }
  std::ranges::sort(sorted, {}, &GgufTensor::begin);
  for (size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i]->begin < sorted[i - 1]->end)
      return Error{file_name + " (" + sorted[i]->name + ")", "lies over bytes of '" + sorted[i - 1]->name + "'", ""};
  return Ok{};
}

Result<int64_t> parse_alignment(const GgufHeader& header, const std::string& file_name) {
  const auto found = header.metadata.find("general.alignment");
  if (found == header.metadata.end()) return int64_t{32};
  const GgufValue& value = found->second;
  const std::string where = file_name + " (general.alignment)";
  if (value.type != GgufValueType::kUint32 || value.is_array) return Error{where, "is not a 32-bit integer", ""};
  uint32_t alignment;
  std::memcpy(&alignment, value.bytes.data(), sizeof alignment);
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment)
    return Error{where, std::to_string(alignment) + " is not a power of two up to " + std::to_string(kMaxAlignment),
                 "usual: 32"};
  return int64_t{alignment};
}

Result<uint32_t> parse_version(Cursor& cursor, const std::string& file_name) {
  FIVEFOLD_ASSIGN(const auto magic, cursor.take(kMagic.size(), "magic"));
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0)
    return Error{file_name, "does not start with GGUF", "not a GGUF file; older GGML files are not read"};
  FIVEFOLD_ASSIGN(const auto version, cursor.number<uint32_t>("version"));
  if (version == 2 || version == 3) return version;
  if (version != 0 && (version & 0xffffu) == 0) return Error{file_name, "is big-endian", "only little-endian is read"};
  return Error{file_name, "GGUF version " + std::to_string(version) + " is not read", "known: 2 and 3"};
}

}  // namespace

Result<GgufHeader> parse_gguf(std::span<const std::byte> file, const std::string& file_name) {
  Cursor cursor(file, file_name);
  GgufHeader header;
  FIVEFOLD_ASSIGN(header.version, parse_version(cursor, file_name));
  FIVEFOLD_ASSIGN(const auto num_tensors, cursor.number<uint64_t>("number of tensors"));
  FIVEFOLD_ASSIGN(const auto num_pairs, cursor.number<uint64_t>("number of metadata values"));
  if (num_pairs > cursor.left() / kLeastPairBytes || num_tensors > cursor.left() / kLeastTensorBytes)
    return Error{file_name,
                 std::to_string(num_pairs) + " metadata values and " + std::to_string(num_tensors) +
                     " tensors do not fit in " + std::to_string(file.size()) + " bytes",
                 kTruncatedHint};
  for (uint64_t i = 0; i < num_pairs; ++i) {
    FIVEFOLD_ASSIGN(const std::string key, parse_name(cursor, "a metadata key", file_name));
    FIVEFOLD_ASSIGN(GgufValue value, parse_value(cursor, file, file_name + " (" + key + ")"));
    if (!header.metadata.emplace(key, value).second) return Error{file_name + " (" + key + ")", "stands twice", ""};
  }
  FIVEFOLD_ASSIGN(header.alignment, parse_alignment(header, file_name));
  std::set<std::string> seen;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    FIVEFOLD_ASSIGN(GgufTensor tensor, parse_tensor(cursor, header.alignment, file_name));
    if (!seen.insert(tensor.name).second) return Error{file_name + " (" + tensor.name + ")", "stands twice", ""};
    header.tensors.push_back(std::move(tensor));
  }
  // A file without tensors may end before its padding does.
  header.data_begin =
      std::min(round_up(static_cast<int64_t>(cursor.position()), header.alignment), static_cast<int64_t>(file.size()));
  FIVEFOLD_TRY(check_ranges(header.tensors, static_cast<int64_t>(file.size()) - header.data_begin, file_name));
  return header;
}

}  // namespace fivefold
