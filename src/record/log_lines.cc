// What the readers of logs share: lines without colours, numbers and sizes as people print them, ranks.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/units.h"
#include "record/log_readers.h"

namespace fivefold {
namespace {

constexpr size_t kMaxLine = 64 * 1024;

bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_digit(char c) { return '0' <= c && c <= '9'; }

// Terminal sequences ESC [ ... letter.
std::string without_colours(std::string_view line) {
  std::string plain;
  plain.reserve(line.size());
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\x1b') {
      plain += line[i];
      continue;
    }
    if (i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && (is_digit(line[i]) || line[i] == ';')) ++i;
    }
  }
  return plain;
}

}  // namespace

void for_each_line(std::string_view content, const std::function<void(std::string_view line)>& line) {
  while (!content.empty()) {
    const size_t end = content.find_first_of("\r\n");
    const std::string_view whole = content.substr(0, end);
    content = end == std::string_view::npos ? std::string_view() : content.substr(end + 1);
    if (whole.empty()) continue;
    const std::string_view kept = whole.substr(0, kMaxLine);
    if (kept.find('\x1b') == std::string_view::npos) {
      line(kept);
    } else {
      line(without_colours(kept));
    }
  }
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<double> leading_number(std::string_view text, std::string_view* rest) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  std::string digits;
  size_t i = 0;
  for (; i < text.size() && digits.size() < 64; ++i) {
    const char c = text[i];
    const bool exponent = (c == 'e' || c == 'E') && !digits.empty() && i + 1 < text.size() &&
                          (is_digit(text[i + 1]) || ((text[i + 1] == '-' || text[i + 1] == '+') &&
                                                     i + 2 < text.size() && is_digit(text[i + 2])));
    const bool sign = (c == '-' || c == '+') && !digits.empty() && (digits.back() == 'e' || digits.back() == 'E');
    if (c == ',' && !digits.empty() && i + 3 < text.size() && is_digit(text[i + 1]) && is_digit(text[i + 2]) &&
        is_digit(text[i + 3]))
      continue;
    if (!is_digit(c) && c != '.' && !exponent && !sign) break;
    digits += c;
  }
  double value = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (problem != std::errc() || end != digits.data() + digits.size()) {
    // "134." ends a sentence.
    if (problem != std::errc() || *end != '.' || end + 1 != digits.data() + digits.size()) return std::nullopt;
    --i;
  }
  if (!std::isfinite(value) || value < 0 || value > kMostOfAnything) return std::nullopt;
  if (rest != nullptr) *rest = text.substr(i);
  return value;
}

std::optional<double> number_after(std::string_view line, std::string_view key) {
  for (size_t at = line.find(key); at != std::string_view::npos; at = line.find(key, at + 1)) {
    std::string_view rest = trimmed(line.substr(at + key.size()));
    if (!rest.empty() && (rest.front() == ':' || rest.front() == '=')) {
      rest.remove_prefix(1);
      if (const auto number = leading_number(rest)) return number;
    }
  }
  return std::nullopt;
}

std::optional<int64_t> whole_number(std::string_view text, std::string_view* rest) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || value < 0) return std::nullopt;
  if (rest != nullptr) *rest = text.substr(static_cast<size_t>(end - text.data()));
  return value;
}

std::optional<int64_t> leading_size(std::string_view text, int64_t* precision) {
  std::string_view rest;
  const auto number = leading_number(text, &rest);
  if (!number) return std::nullopt;
  const std::string_view digits = trimmed(text.substr(0, text.size() - rest.size()));
  rest = trimmed(rest);
  double unit = 0;
  for (const auto& [name, bytes] : std::initializer_list<std::pair<std::string_view, double>>{{"bytes", 1.0},
                                                                                              {"KiB", 0x1p10},
                                                                                              {"MiB", 0x1p20},
                                                                                              {"GiB", 0x1p30},
                                                                                              {"TiB", 0x1p40},
                                                                                              {"KB", 1e3},
                                                                                              {"MB", 1e6},
                                                                                              {"GB", 1e9},
                                                                                              {"B", 1.0}})
    if (rest.starts_with(name)) {
      unit = bytes;
      break;
    }
  if (unit == 0 || *number * unit > kMostOfAnything) return std::nullopt;
  if (precision != nullptr) {
    const size_t point = digits.find('.');
    const double decimals = point == std::string_view::npos ? 0 : static_cast<double>(digits.size() - point - 1);
    *precision = static_cast<int64_t>(std::ceil(unit * std::pow(10.0, -std::min(decimals, 9.0)) / 2));
  }
  return static_cast<int64_t>(std::llround(*number * unit));
}

int rank_of_line(std::string_view line) {
  line = trimmed(line);
  constexpr int64_t kMaxRank = 1 << 24;
  for (const std::string_view mark : {"[rank", "[Rank "}) {
    const size_t at = line.find(mark);
    if (at == std::string_view::npos) continue;
    std::string_view rest;
    const auto rank = whole_number(line.substr(at + mark.size()), &rest);
    if (rank && *rank <= kMaxRank && rest.starts_with("]")) return static_cast<int>(*rank);
  }
  // srun --label.
  std::string_view rest;
  const auto rank = whole_number(line, &rest);
  if (rank && *rank <= kMaxRank && rest.starts_with(": ")) return static_cast<int>(*rank);
  return kUnknownRank;
}

void note_memory(ForeignLog& log, int rank, LoggedMemoryKind kind, double bytes) {
  if (!(bytes > 0) || bytes > kMostOfAnything) return;
  const auto whole = static_cast<int64_t>(std::llround(bytes));
  for (LoggedMemory& figure : log.memory)
    if (figure.rank == rank && figure.kind == kind) {
      figure.bytes = std::max(figure.bytes, whole);
      return;
    }
  log.memory.push_back({.rank = rank, .kind = kind, .bytes = whole});
}

int SessionCount::session_of(int rank, int64_t step) {
  Last& last = last_[rank];
  if (step <= last.step) ++last.session;
  last.step = step;
  return last.session;
}

}  // namespace fivefold
