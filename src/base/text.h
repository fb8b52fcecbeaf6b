// Small text functions: sizes for people, nearest names for error hints, parsing of sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fivefold {

// "17.60 GiB", "512.0 MiB", "12 B": binary units, three significant places after the unit is chosen.
std::string format_bytes(int64_t bytes);
// "1.5 s", "23.1 ms", "4.2 h".
std::string format_seconds(double seconds);
// 12345678 -> "12,345,678".
std::string format_count(int64_t count);
// The entry of `known` with the smallest edit distance to `name`; nothing when none is within half its length + 1.
std::optional<std::string> nearest_name(std::string_view name, const std::vector<std::string>& known);
// "did you mean NAME?" or, without a near name, "known: a, b, c".
std::string name_hint(std::string_view name, const std::vector<std::string>& known);
// "600MiB", "24GB", "1.5GiB", "4096" -> bytes. GB is 1e9, GiB is 2^30. Errors: no number, unknown unit, negative.
Result<int64_t> parse_bytes(std::string_view text);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);

}  // namespace fivefold
