// Checked integer division. Every division of sizes in fivefold says which one it means.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace fivefold {

// a / b. REQUIRES: b > 0, a >= 0 and b divides a.
constexpr int64_t div_exact(int64_t a, int64_t b) {
  FIVEFOLD_CHECK(b > 0 && a >= 0 && a % b == 0);
  return a / b;
}
// Smallest integer >= a / b. REQUIRES: b > 0, a >= 0.
constexpr int64_t div_ceil(int64_t a, int64_t b) {
  FIVEFOLD_CHECK(b > 0 && a >= 0);
  return a / b + (a % b != 0 ? 1 : 0);
}
// Largest integer <= a / b. REQUIRES: b > 0, a >= 0.
constexpr int64_t div_floor(int64_t a, int64_t b) {
  FIVEFOLD_CHECK(b > 0 && a >= 0);
  return a / b;
}
// Smallest multiple of b that is >= a. REQUIRES: b > 0, a >= 0.
constexpr int64_t round_up(int64_t a, int64_t b) { return div_ceil(a, b) * b; }

}  // namespace fivefold
