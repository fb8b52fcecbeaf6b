// AccountBytes: bytes by account. Plain data.
#pragma once

#include <array>
#include <cstdint>

#include "spec/enums.h"

namespace fivefold {

struct AccountBytes {
  std::array<int64_t, kNumAccounts> bytes{};

  int64_t& operator[](Account account) { return bytes[static_cast<size_t>(account)]; }
  int64_t operator[](Account account) const { return bytes[static_cast<size_t>(account)]; }
  int64_t total() const {
    int64_t sum = 0;
    for (const int64_t b : bytes) sum += b;
    return sum;
  }
  bool operator==(const AccountBytes&) const = default;
};

}  // namespace fivefold
