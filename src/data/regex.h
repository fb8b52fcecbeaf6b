// Regex: a regular expression of a tokenizer.json. Those are written for Oniguruma; they are translated to PCRE2 where
// the two differ (Note [Oniguruma and PCRE2] in regex.cc). Thread-safe after compile.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace fivefold {

class Regex {
 public:
  // Errors: not a regular expression (with the position), a construct whose meaning differs in PCRE2.
  static Result<Regex> compile(std::string_view pattern, const std::string& where);
  // Matches exactly `text`.
  static Regex literal(std::string_view text);

  // Byte ranges [first, second) of the matches from left to right, without overlap; matches of no characters are left
  // out. REQUIRES: `text` is well-formed UTF-8. Throws std::runtime_error beyond the match limits.
  std::vector<std::pair<size_t, size_t>> find_all(std::string_view text) const;
  // A lower bound of the characters in a match that find_all() gives; at least 1.
  size_t min_length() const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

}  // namespace fivefold
