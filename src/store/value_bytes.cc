#include "store/value_bytes.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace fivefold {

std::vector<std::byte> value_bytes(std::span<const float> values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
  if (dtype == DType::kFloat32) {
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  FIVEFOLD_CHECK(dtype == DType::kBFloat16);
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &values[i], sizeof bits);
    const auto half = static_cast<uint16_t>(std::isnan(values[i]) ? (bits >> 16) | 0x40u
                                                                  : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    std::memcpy(bytes.data() + 2 * i, &half, sizeof half);
  }
  return bytes;
}

}  // namespace fivefold
