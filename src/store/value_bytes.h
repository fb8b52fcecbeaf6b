// fp32 values as the bytes of a file's type.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "spec/enums.h"

namespace fivefold {

// fp32 as it is, bf16 rounded to nearest even, as the engine's working weights are. REQUIRES: one of the two (checked).
std::vector<std::byte> value_bytes(std::span<const float> values, DType dtype);

}  // namespace fivefold
