#include "base/nesting.h"

#include <algorithm>

namespace fivefold {
namespace {

// The end of the TOML string that begins at `at`: behind its last quote, or the end of the text.
size_t toml_string_end(std::string_view toml, size_t at) {
  const char quote = toml[at];
  const std::string delimiter(toml.substr(at, 3) == std::string(3, quote) ? 3 : 1, quote);
  for (at += delimiter.size(); at < toml.size(); ++at) {
    if (quote == '"' && toml[at] == '\\') {
      ++at;
    } else if (toml.substr(at, delimiter.size()) == delimiter) {
      at += delimiter.size();
      // The last of up to five quotes in a row close a string of several lines; the others are its content.
      for (int more = 0; delimiter.size() == 3 && more < 2 && at < toml.size() && toml[at] == quote; ++more) ++at;
      return at;
    }
  }
  return toml.size();
}

Error too_deep(const std::string& where, int limit) {
  return Error{where, "is nested deeper than " + std::to_string(limit) + " levels", ""};
}

}  // namespace

Status check_json_nesting(std::string_view json, const std::string& where) {
  int depth = 0;
  bool in_string = false;
  for (size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      if (c == '\\') ++at;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonNesting) return too_deep(where, kMaxJsonNesting);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return Ok{};
}

Status check_toml_nesting(std::string_view toml, const std::string& where) {
  int depth = 0, dots = 0;  // open brackets; dots since the last character that ends a key
  for (size_t at = 0; at < toml.size();) {
    const char c = toml[at];
    if (c == '"' || c == '\'') {
      at = toml_string_end(toml, at);
      continue;
    }
    if (c == '#') {
      at = std::min(toml.find('\n', at), toml.size());
      continue;
    }
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == '.')
      ++dots;
    else if (std::string_view("[]{}=,\n").find(c) != std::string_view::npos)
      dots = 0;
    if (depth > kMaxTomlNesting || dots >= kMaxTomlNesting) {
      const auto line = 1 + std::count(toml.begin(), toml.begin() + static_cast<std::ptrdiff_t>(at), '\n');
      return too_deep(where + ":" + std::to_string(line), kMaxTomlNesting);
    }
    ++at;
  }
  return Ok{};
}

}  // namespace fivefold
