// Values of floating-point tensors on disk as fp32, and back. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "store/hub_folder.h"

namespace fivefold {

// Types that these functions take: fp32, fp16, bf16, fp64.
bool is_float_storage(DType dtype);

// Exact but for fp64, whose values are rounded to nearest. REQUIRES: is_float_storage, whole elements (checked).
std::vector<float> decode_values(DType dtype, std::span<const std::byte> bytes);
// Rounds to nearest, ties to even; too large a value becomes infinite. REQUIRES: is_float_storage (checked).
std::vector<std::byte> encode_values(std::span<const float> values, DType dtype);

}  // namespace fivefold
