#include "data/pattern.h"

#include <algorithm>

namespace fivefold {

Result<Regex> parse_pattern(const JsonFields& component) {
  FIVEFOLD_ASSIGN(const nlohmann::json* value, component.required("pattern"));
  FIVEFOLD_ASSIGN(const JsonFields pattern, JsonFields::of(*value, component.place("pattern")));
  if (pattern.find("Regex") != nullptr) {
    FIVEFOLD_ASSIGN(const std::string text, pattern.required_string("Regex"));
    return Regex::compile(text, pattern.place("Regex"));
  }
  FIVEFOLD_ASSIGN(const std::string text, pattern.required_string("String"));
  if (text.empty()) return Error{pattern.place("String"), "is empty", ""};
  return Regex::literal(text);
}

std::string replace_all(const Regex& pattern, std::string_view text, std::string_view content) {
  std::string out;
  size_t end = 0;
  for (const auto& [first, second] : pattern.find_all(text)) {
    out += text.substr(end, first - end);
    out += content;
    end = second;
  }
  out += text.substr(end);
  return out;
}

double replace_growth(const Regex& pattern, std::string_view content) {
  return std::max(1.0, static_cast<double>(content.size()) / static_cast<double>(pattern.min_length()));
}

}  // namespace fivefold
