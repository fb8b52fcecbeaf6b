#include "exporters/shell_words.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace fivefold {
namespace {

constexpr int kMaxDepth = 24;                   // of expansions in one another
constexpr size_t kMaxGrowth = size_t{4} << 20;  // characters that expansions may add to a script
constexpr std::string_view kBlank = " \t\r";
constexpr std::string_view kEndsWord = " \t\r\n;&|()<>";

bool is_blank(char c) { return kBlank.find(c) != std::string_view::npos || c == '\n'; }

// The place of the bracket that closes the one before `at`; npos: there is none. Quoted ones do not count.
size_t closing(std::string_view text, size_t at, char open, char close) {
  for (int depth = 1; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\\')
      ++at;
    else if (c == '\'' || c == '"') {
      at = text.find(c, at + 1);
      if (at == std::string_view::npos) return at;
    } else if (c == open)
      ++depth;
    else if (c == close && --depth == 0)
      return at;
  }
  return std::string_view::npos;
}

}  // namespace

size_t shell_name_length(std::string_view text) {
  if (text.empty() || !(std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '_')) return 0;
  size_t length = 1;
  while (length < text.size() && (std::isalnum(static_cast<unsigned char>(text[length])) || text[length] == '_'))
    ++length;
  return length;
}

void ShellWords::Word::close() {
  if (open) fields.push_back(std::move(current));
  current.clear();
  open = false;
}

void ShellWords::Word::add_split(std::string_view text) {
  if (!splits) return add(text);
  for (const char c : text) {
    if (is_blank(c))
      close();
    else
      current += c, open = true;
  }
}

void ShellWords::Word::add_list(const std::vector<std::string>& list) {
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0 && splits)
      close();
    else if (i > 0)
      current += ' ';
    add(list[i]);
  }
}

std::string ShellWords::place(size_t at) {
  at = std::min(at, text_.size());
  if (at < counted_at_) counted_at_ = 0, counted_lines_ = 1;
  counted_lines_ += static_cast<size_t>(
      std::count(text_.begin() + static_cast<int64_t>(counted_at_), text_.begin() + static_cast<int64_t>(at), '\n'));
  counted_at_ = at;
  return fmt::format("{}:{}", where_, counted_lines_);
}

void ShellWords::set(const std::string& name, std::vector<std::string> value) { variables_[name] = std::move(value); }

void ShellWords::append(const std::string& name, const std::vector<std::string>& value, bool array) {
  std::vector<std::string>& all = variables_[name];
  if (array || all.empty())
    all.insert(all.end(), value.begin(), value.end());
  else
    all.front() += value.empty() ? "" : value.front();
}

Status ShellWords::check_growth(const Word& word, size_t at) {
  size_t size = word.current.size();
  for (const std::string& field : word.fields) size += field.size();
  spent_ += size;
  if (spent_ > kMaxGrowth) return error(at, "the script's variables grow beyond 4 MiB");
  return Ok{};
}

void ShellWords::add_variable(const std::string& name, Word& word, Quotes quotes, bool all) {
  const auto found = variables_.find(name);
  if (found == variables_.end()) {
    if (name == "@" || name == "*" || name == "#" || name == "?" || name == "!" || name == "$" || name == "-") return;
    if (std::find(unset_.begin(), unset_.end(), name) == unset_.end()) unset_.push_back(name);
    return word.add("$" + name);
  }
  const std::vector<std::string>& value = found->second;
  if (all && quotes == Quotes::kDouble) return word.add_list(value);
  const std::string text = all ? join(value, " ") : value.empty() ? "" : value.front();
  if (quotes == Quotes::kDouble)
    word.add(text);
  else
    word.add_split(text);
}

Result<std::string> ShellWords::text_of(std::string_view text, int depth, size_t base) {
  Word word{.splits = false};
  size_t at = 0;
  // As between double quotes, but quotes are quotes: the word of ${NAME:-"word"}.
  while (at < text.size()) {
    if (kEndsWord.find(text[at]) != std::string_view::npos) {
      word.add(text.substr(at++, 1));
      continue;
    }
    FIVEFOLD_TRY(read(text, at, word, depth, base));
  }
  return word.current;
}

Status ShellWords::braces(std::string_view inner, Word& word, Quotes quotes, int depth, size_t base) {
  if (inner.starts_with("#") && inner.size() > 1) return word.add("0"), Ok{};  // a length: of no use here
  if (inner.starts_with("!")) inner.remove_prefix(1);
  size_t length = shell_name_length(inner);
  if (length == 0)
    while (length < inner.size() && std::isdigit(static_cast<unsigned char>(inner[length]))) ++length;
  if (length == 0 && !inner.empty() && (inner[0] == '@' || inner[0] == '*')) length = 1;
  if (length == 0) return word.add("${" + std::string(inner) + "}"), Ok{};
  const std::string name(inner.substr(0, length));
  std::string_view rest = inner.substr(length);
  bool all = name == "@" || name == "*";
  if (rest.starts_with("[@]") || rest.starts_with("[*]")) all = true, rest.remove_prefix(3);
  const bool colon = rest.starts_with(":");
  const char operation = rest.size() > (colon ? 1u : 0u) ? rest[colon ? 1 : 0] : '\0';
  const auto found = variables_.find(name);
  const bool filled = found != variables_.end() && !found->second.empty() && !(colon && found->second.front().empty());
  if (operation == '-' || operation == '=' || operation == '+') {
    if (filled == (operation == '+')) {
      FIVEFOLD_ASSIGN(const std::string other, text_of(rest.substr(colon ? 2 : 1), depth + 1, base));
      if (operation == '=') set(name, {other});
      quotes == Quotes::kDouble ? word.add(other) : word.add_split(other);
      return check_growth(word, base);
    }
    if (operation == '+') return Ok{};
  }
  add_variable(name, word, quotes, all);
  return check_growth(word, base);
}

Status ShellWords::dollar(std::string_view text, size_t& at, Word& word, Quotes quotes, int depth, size_t base) {
  if (depth > kMaxDepth) return error(base + at, "expansions are nested too deeply");
  const size_t begin = at++;
  if (text.substr(at).starts_with("((")) {
    const size_t end = closing(text, at + 2, '(', ')');
    if (end != std::string_view::npos && text.substr(end + 1).starts_with(")")) {
      FIVEFOLD_ASSIGN(const std::string expression, text_of(text.substr(at + 2, end - at - 2), depth + 1, base + at));
      const std::string value = shell_arithmetic(expression, variables_);
      word.add(value.empty() ? "$((" + expression + "))" : value);
      at = end + 2;
      return Ok{};
    }
  }
  if (at < text.size() && (text[at] == '(' || text[at] == '{')) {
    const bool command = text[at] == '(';
    const size_t end = closing(text, at + 1, text[at], command ? ')' : '}');
    if (end == std::string_view::npos) return error(base + begin, command ? "$( does not end" : "${ does not end");
    const std::string_view inner = text.substr(at + 1, end - at - 1);
    at = end + 1;
    if (!command) return braces(inner, word, quotes, depth, base + begin);
    word.add("$(" + std::string(inner) + ")");
    return check_growth(word, base + begin);
  }
  size_t length = shell_name_length(text.substr(at));
  if (length == 0 && at < text.size() && std::string_view("@*#?!$-0123456789").find(text[at]) != std::string_view::npos)
    length = 1;
  if (length == 0) return word.add("$"), Ok{};
  const std::string name(text.substr(at, length));
  at += length;
  add_variable(name, word, quotes, name == "@" || name == "*");
  return check_growth(word, base + begin);
}

Status ShellWords::double_quoted(std::string_view text, size_t& at, Word& word, int depth, size_t base) {
  const size_t begin = at++;
  // "${LIST[@]}" and "$@" of an empty list are no field at all.
  if (text.substr(at, 2) != "${" && text.substr(at, 2) != "$@") word.open = true;
  while (at < text.size() && text[at] != '"') {
    if (text[at] == '$') {
      FIVEFOLD_TRY(dollar(text, at, word, Quotes::kDouble, depth + 1, base));
    } else if (text[at] == '\\' && at + 1 < text.size()) {
      const char next = text[at + 1];
      if (next == '"' || next == '$' || next == '\\' || next == '`')
        word.add(text.substr(at + 1, 1));
      else if (next != '\n')
        word.add(text.substr(at, 2));
      at += 2;
    } else {
      word.add(text.substr(at++, 1));
    }
  }
  if (at >= text.size()) return error(base + begin, "a double quote that does not end");
  ++at;
  return Ok{};
}

Status ShellWords::read(std::string_view text, size_t& at, Word& word, int depth, size_t base) {
  if (depth > kMaxDepth) return error(base + at, "expansions are nested too deeply");
  while (at < text.size() && kEndsWord.find(text[at]) == std::string_view::npos) {
    const char c = text[at];
    if (c == '\'' || c == '`') {
      const size_t end = text.find(c, at + 1);
      if (end == std::string_view::npos) return error(base + at, "a quote that does not end");
      word.add(c == '`' ? text.substr(at, end - at + 1) : text.substr(at + 1, end - at - 1));
      at = end + 1;
    } else if (c == '"') {
      FIVEFOLD_TRY(double_quoted(text, at, word, depth + 1, base));
    } else if (c == '$') {
      FIVEFOLD_TRY(dollar(text, at, word, Quotes::kNone, depth + 1, base));
    } else if (c == '\\') {
      if (at + 1 < text.size() && text[at + 1] != '\n') word.add(text.substr(at + 1, 1));
      at += 2;
    } else {
      word.add(text.substr(at++, 1));
    }
  }
  at = std::min(at, text.size());
  return Ok{};
}

Status ShellWords::word(size_t& at, std::vector<std::string>& fields) {
  Word word;
  FIVEFOLD_TRY(read(text_, at, word, 0, 0));
  word.close();
  fields.insert(fields.end(), word.fields.begin(), word.fields.end());
  return Ok{};
}

Result<std::string> ShellWords::value(size_t& at) {
  Word word{.splits = false};
  FIVEFOLD_TRY(read(text_, at, word, 0, 0));
  return word.current;
}

Result<std::string> ShellWords::document(std::string_view body) {
  Word word{.splits = false};
  for (size_t at = 0; at < body.size();) {
    if (body[at] == '$')
      FIVEFOLD_TRY(dollar(body, at, word, Quotes::kDouble, 0, 0));
    else if (body[at] == '\\' && at + 1 < body.size() && (body[at + 1] == '$' || body[at + 1] == '\\'))
      word.add(body.substr(at + 1, 1)), at += 2;
    else
      word.add(body.substr(at++, 1));
  }
  return word.current;
}

}  // namespace fivefold
