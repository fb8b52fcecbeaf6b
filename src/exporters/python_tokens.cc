#include "exporters/python_tokens.h"

#include <fmt/format.h>

#include <algorithm>

namespace fivefold {
namespace {

constexpr size_t kMaxText = size_t{1} << 20;

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Result<std::vector<PythonToken>> tokens() {
    while (at_ < text_.size()) FIVEFOLD_TRY(next());
    if (depth_ > 0) return Error{place(opened_), "a bracket that does not end", ""};
    push(PythonToken::Kind::kNewline, "");
    push(PythonToken::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string place(size_t line) const { return fmt::format("{}:{}", where_, line); }
  void push(PythonToken::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_, column_}); }

  Status next() {
    const char c = text_[at_];
    if (c == '\n') {
      if (depth_ == 0) push(PythonToken::Kind::kNewline, "");
      ++line_, ++at_;
      column_ = 0;
      while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_, ++column_;
      return Ok{};
    }
    if (c == ' ' || c == '\t' || c == '\r') return ++at_, Ok{};
    if (c == '\\') return at_ += 1, Ok{};
    if (c == '#') return at_ = std::min(text_.find('\n', at_), text_.size()), Ok{};
    if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') return name();
    if (std::isdigit(static_cast<unsigned char>(c)) ||
        (c == '.' && at_ + 1 < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_ + 1]))))
      return number();
    if (c == '"' || c == '\'') return text();
    return symbol();
  }

  Status name() {
    size_t end = at_;
    while (end < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[end])) || text_[end] == '_')) ++end;
    const std::string word(text_.substr(at_, end - at_));
    // r"...", f"...": the text as it is written.
    if (word.size() <= 2 && end < text_.size() && (text_[end] == '"' || text_[end] == '\'')) return at_ = end, text();
    push(PythonToken::Kind::kName, word);
    at_ = end;
    return Ok{};
  }

  Status number() {
    size_t end = at_;
    while (end < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[end])) || text_[end] == '.' || text_[end] == '_' ||
            ((text_[end] == '-' || text_[end] == '+') && (text_[end - 1] == 'e' || text_[end - 1] == 'E'))))
      ++end;
    std::string digits(text_.substr(at_, end - at_));
    std::erase(digits, '_');
    push(PythonToken::Kind::kNumber, digits);
    at_ = end;
    return Ok{};
  }

  Status text() {
    const char quote = text_[at_];
    const std::string triple(3, quote);
    const size_t begin = line_;
    const bool lines = text_.substr(at_, 3) == triple;
    std::string value;
    for (at_ += lines ? 3 : 1; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (lines ? text_.substr(at_, 3) == triple : c == quote) {
        at_ += lines ? 3 : 1;
        push(PythonToken::Kind::kText, value);
        return Ok{};
      }
      if (c == '\n') {
        if (!lines) break;
        ++line_;
      }
      if (c == '\\' && at_ + 1 < text_.size()) {
        if (text_[++at_] == '\n') ++line_;
        value += std::string("\\") + text_[at_];
        continue;
      }
      value += c;
    }
    return Error{place(begin), "a text that does not end", ""};
  }

  Status symbol() {
    const char c = text_[at_];
    if (c == '(' || c == '[' || c == '{') {
      if (depth_++ == 0) opened_ = line_;
    }
    if (c == ')' || c == ']' || c == '}')
      if (--depth_ < 0) return Error{place(line_), fmt::format("`{}` closes nothing", c), ""};
    const std::string_view two = text_.substr(at_, 2);
    const bool pair = two == "**" || two == "//" || two == "==" || two == "!=" || two == "->" || two == "+=";
    push(PythonToken::Kind::kSymbol, std::string(pair ? two : two.substr(0, 1)));
    at_ += pair ? 2 : 1;
    return Ok{};
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0, line_ = 1, column_ = 0, opened_ = 1;
  int depth_ = 0;
  std::vector<PythonToken> tokens_;
};

}  // namespace

Result<std::vector<PythonToken>> read_python_tokens(std::string_view text, const std::string& where) {
  if (text.size() > kMaxText) return Error{where, "has more than 1 MiB", "a configuration is a small file"};
  return Lexer(text, where).tokens();
}

}  // namespace fivefold
