// For tests: a GGUF file put together byte by byte, not by the code under test.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fivefold {

template <typename T>
std::string little_endian(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// Text as GGUF has it: its length in 8 bytes, then its bytes.
inline std::string gguf_text(std::string_view text) { return little_endian<uint64_t>(text.size()) + std::string(text); }

class GgufBytes {
 public:
  uint32_t version = 3;

  // A pair of a value's bytes and its type's number.
  GgufBytes& raw(std::string_view key, uint32_t type, const std::string& value) {
    pairs_ += gguf_text(key) + little_endian(type) + value;
    ++num_pairs_;
    return *this;
  }
  GgufBytes& u32(std::string_view key, uint32_t value) { return raw(key, 4, little_endian(value)); }
  GgufBytes& f32(std::string_view key, float value) { return raw(key, 6, little_endian(value)); }
  GgufBytes& boolean(std::string_view key, bool value) { return raw(key, 7, std::string(1, value ? '\1' : '\0')); }
  GgufBytes& text(std::string_view key, std::string_view value) { return raw(key, 8, gguf_text(value)); }
  GgufBytes& texts(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes = little_endian<uint32_t>(8) + little_endian<uint64_t>(values.size());
    for (const std::string& value : values) bytes += gguf_text(value);
    return raw(key, 9, bytes);
  }
  GgufBytes& i32s(std::string_view key, const std::vector<int32_t>& values) {
    std::string bytes = little_endian<uint32_t>(5) + little_endian<uint64_t>(values.size());
    for (const int32_t value : values) bytes += little_endian(value);
    return raw(key, 9, bytes);
  }

  // `dims` innermost first, as in the file; `offset` into the data section.
  GgufBytes& describe(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    tensors_ += gguf_text(name) + little_endian(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) tensors_ += little_endian(dim);
    tensors_ += little_endian(type) + little_endian(offset);
    ++num_tensors_;
    return *this;
  }
  // The same with its bytes, at the next multiple of 32.
  GgufBytes& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, const std::string& bytes) {
    data_.resize((data_.size() + 31) / 32 * 32);
    describe(name, dims, type, data_.size());
    data_ += bytes;
    return *this;
  }
  GgufBytes& f32_tensor(std::string_view name, const std::vector<uint64_t>& dims, const std::vector<float>& values) {
    return tensor(name, dims, 0, {reinterpret_cast<const char*>(values.data()), 4 * values.size()});
  }
  GgufBytes& data(const std::string& bytes) {
    data_ += bytes;
    return *this;
  }

  std::string bytes() const {
    std::string file =
        "GGUF" + little_endian(version) + little_endian(num_tensors_) + little_endian(num_pairs_) + pairs_ + tensors_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

 private:
  std::string pairs_, tensors_, data_;
  uint64_t num_pairs_ = 0, num_tensors_ = 0;
};

}  // namespace fivefold
