#include "spec/hub_layout.h"

#include <algorithm>

namespace fivefold {
namespace {

bool is_transposed(const ParameterEntry& entry, const HubPart& part) {
  return part.transposed && entry.whole_shape.size() > 1;
}

}  // namespace

std::vector<int64_t> hub_shape(const ParameterEntry& entry, const HubPart& part) {
  if (entry.whole_shape.size() == 1) return {part.rows};
  if (part.transposed) return {entry.whole_cols(), part.rows};
  return {part.rows, entry.whole_cols()};
}

std::vector<float> hub_values(const ParameterEntry& entry, const HubPart& part, std::span<const float> packed) {
  FIVEFOLD_CHECK(static_cast<int64_t>(packed.size()) == entry.whole_numel());
  const auto rows = static_cast<size_t>(part.rows), cols = static_cast<size_t>(entry.whole_cols());
  const std::span<const float> own = packed.subspan(static_cast<size_t>(part.row_begin) * cols, rows * cols);
  if (!is_transposed(entry, part)) return {own.begin(), own.end()};
  std::vector<float> values(own.size());
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < cols; ++c) values[c * rows + r] = own[r * cols + c];
  return values;
}

void place_hub_values(const ParameterEntry& entry, const HubPart& part, std::span<const float> values,
                      std::span<float> packed) {
  const auto rows = static_cast<size_t>(part.rows), cols = static_cast<size_t>(entry.whole_cols());
  FIVEFOLD_CHECK(static_cast<int64_t>(packed.size()) == entry.whole_numel() && values.size() == rows * cols);
  const std::span<float> own = packed.subspan(static_cast<size_t>(part.row_begin) * cols, rows * cols);
  if (!is_transposed(entry, part)) {
    std::copy(values.begin(), values.end(), own.begin());
    return;
  }
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < cols; ++c) own[r * cols + c] = values[c * rows + r];
}

}  // namespace fivefold
