// For tests: the bytes of an `.idx` file written out field by field, independent of TokenFileWriter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fivefold {

template <typename T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xFF);
  return bytes;
}

struct IndexBytes {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t type = 8;  // uint16
  std::vector<int32_t> lengths = {};
  std::vector<int64_t> pointers = {};
  std::vector<int64_t> documents = {};

  std::string bytes() const {
    std::string out = magic + little_endian(version) + little_endian(type) +
                      little_endian(static_cast<uint64_t>(lengths.size())) +
                      little_endian(static_cast<uint64_t>(documents.size()));
    for (const int32_t value : lengths) out += little_endian(value);
    for (const int64_t value : pointers) out += little_endian(value);
    for (const int64_t value : documents) out += little_endian(value);
    return out;
  }
};

}  // namespace fivefold
