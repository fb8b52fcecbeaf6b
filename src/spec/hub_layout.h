// Between packed parameters, in full, and the tensors of a Hub folder: shapes on disk, and rows cut out or put in,
// transposed where the disk has them so. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/inventory.h"

namespace fivefold {

// [rows, cols], [cols, rows] where transposed, or [rows] of a vector.
std::vector<int64_t> hub_shape(const ParameterEntry& entry, const HubPart& part);

// The part's values in the disk's order, out of the packed parameter's. REQUIRES: packed.size() is the entry's numel.
std::vector<float> hub_values(const ParameterEntry& entry, const HubPart& part, std::span<const float> packed);

// Writes the part's values (in the disk's order) to its rows of the packed parameter.
// REQUIRES: values.size() is that of the part, packed.size() the entry's numel.
void place_hub_values(const ParameterEntry& entry, const HubPart& part, std::span<const float> values,
                      std::span<float> packed);

}  // namespace fivefold
