// The tokens of a Python file: what python_config.cc reads configurations from. Lines inside brackets are one; comments
// and the indentation inside brackets vanish. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fivefold {

struct PythonToken {
  enum class Kind : uint8_t { kName, kNumber, kText, kSymbol, kNewline, kEnd } kind = Kind::kEnd;
  std::string text;
  size_t line = 1;
  size_t column = 0;  // of a line's first token: its indentation
};

// A newline and an end come last. Errors ("FILE:LINE"): a bracket or a text that does not end, a file that is too
// large.
Result<std::vector<PythonToken>> read_python_tokens(std::string_view text, const std::string& where);

}  // namespace fivefold
