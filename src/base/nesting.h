// How deeply an untrusted text nests, checked before it is parsed: what parsers and their values do by recursion
// (copying, printing, destroying) must not run out of stack. The text need not be well-formed; up to its first error
// the check sees the same structure as a parser. Thread-safe: no state.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace fivefold {

// Above what any format that fivefold reads needs, and far below what a thread's stack holds.
inline constexpr int kMaxJsonNesting = 64;
inline constexpr int kMaxTomlNesting = 32;

// Errors: objects and arrays of `json` within one another beyond kMaxJsonNesting.
Status check_json_nesting(std::string_view json, const std::string& where);

// Errors ("FILE:LINE"): inline tables and arrays of `toml` within one another, or the parts of a dotted key, beyond
// kMaxTomlNesting each.
Status check_toml_nesting(std::string_view toml, const std::string& where);

}  // namespace fivefold
