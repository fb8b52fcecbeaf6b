#include <charconv>
#include <optional>

#include "exporters/shell_words.h"

namespace fivefold {
namespace {

constexpr int kMaxDepth = 32;

class Arithmetic {
 public:
  Arithmetic(std::string_view text, const std::map<std::string, std::vector<std::string>>& variables)
      : text_(text), variables_(variables) {}

  std::optional<int64_t> whole() {
    const std::optional<int64_t> value = sum(0);
    skip_blanks();
    return at_ == text_.size() ? value : std::nullopt;
  }

 private:
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  char next() {
    skip_blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  std::optional<int64_t> sum(int depth) {
    std::optional<int64_t> left = product(depth);
    while (left && (next() == '+' || next() == '-')) {
      const bool minus = text_[at_++] == '-';
      const std::optional<int64_t> right = product(depth);
      int64_t result = 0;
      if (!right ||
          (minus ? __builtin_sub_overflow(*left, *right, &result) : __builtin_add_overflow(*left, *right, &result)))
        return {};
      left = result;
    }
    return left;
  }

  std::optional<int64_t> product(int depth) {
    std::optional<int64_t> left = operand(depth);
    while (left && (next() == '*' || next() == '/' || next() == '%')) {
      const char operation = text_[at_++];
      const std::optional<int64_t> right = operand(depth);
      if (!right || (operation != '*' && (*right == 0 || *right == -1))) return {};
      int64_t result = 0;
      if (operation == '*' && __builtin_mul_overflow(*left, *right, &result)) return {};
      if (operation == '/') result = *left / *right;  // truncates, as the shell's does
      if (operation == '%') result = *left % *right;
      left = result;
    }
    return left;
  }

  std::optional<int64_t> operand(int depth) {
    if (depth > kMaxDepth) return {};
    const char c = next();
    if (c == '(') {
      ++at_;
      const std::optional<int64_t> value = sum(depth + 1);
      if (!value || next() != ')') return {};
      ++at_;
      return value;
    }
    if (const size_t length = shell_name_length(text_.substr(at_)); length > 0) {
      const auto found = variables_.find(std::string(text_.substr(at_, length)));
      at_ += length;
      if (found == variables_.end() || found->second.empty()) return {};
      return number(found->second.front());
    }
    size_t length = 0;
    while (at_ + length < text_.size() && (std::isdigit(static_cast<unsigned char>(text_[at_ + length])))) ++length;
    const std::optional<int64_t> value = number(text_.substr(at_, length));
    at_ += length;
    return value;
  }

  static std::optional<int64_t> number(std::string_view text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return {};
    return value;
  }

  std::string_view text_;
  const std::map<std::string, std::vector<std::string>>& variables_;
  size_t at_ = 0;
};

}  // namespace

std::string shell_arithmetic(std::string_view text, const std::map<std::string, std::vector<std::string>>& variables) {
  const std::optional<int64_t> value = Arithmetic(text, variables).whole();
  return value ? std::to_string(*value) : "";
}

}  // namespace fivefold
