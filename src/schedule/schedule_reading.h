// What the two readers of schedule files share.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

#include "schedule/schedule.h"

namespace fivefold {

// Largest numbers in a file: far above any real pipeline, and small enough that all products fit into an int.
inline constexpr int kMaxRanks = 4096, kMaxChunks = 256, kMaxStages = 16384, kMaxMicrobatches = 65536;

// Takes a decimal number from the front of `text`. Nothing, and `text` unchanged, when there is none or it is over
// `max`.
inline std::optional<int> take_number(std::string_view& text, int max) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > max || text.front() == '-') return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}
inline bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}
inline std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// Adds the transfers when there are none, and checks. Errors begin with the file's name.
Result<Schedule> finish_reading(Schedule schedule, const std::string& name);

}  // namespace fivefold
