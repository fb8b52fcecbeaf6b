// Pattern: {"String": "..."} or {"Regex": "..."} in a tokenizer.json.
#pragma once

#include "base/result.h"
#include "data/json_fields.h"
#include "data/regex.h"

namespace fivefold {

// The "pattern" of a component. Errors: missing, neither kind, an empty string, an invalid regular expression.
Result<Regex> parse_pattern(const JsonFields& component);

// `text` with every match replaced by `content`, as it stands.
std::string replace_all(const Regex& pattern, std::string_view text, std::string_view content);

// The growth (data/growth.h) of replace_all().
double replace_growth(const Regex& pattern, std::string_view content);

// Deepest nesting of "Sequence" components: deeper ones are refused, since parsing recurses.
inline constexpr int kMaxNesting = 16;

}  // namespace fivefold
