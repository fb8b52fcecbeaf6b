#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/units.h"

namespace fivefold {

std::string format_bytes(int64_t bytes) {
  const double magnitude = std::abs(static_cast<double>(bytes));
  if (magnitude >= static_cast<double>(kGiB)) return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / kGiB);
  if (magnitude >= static_cast<double>(kMiB)) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMiB);
  if (magnitude >= static_cast<double>(kKiB)) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / kKiB);
  return fmt::format("{} B", bytes);
}

std::string format_seconds(double seconds) {
  const double magnitude = std::abs(seconds);
  if (magnitude >= 48 * 3600.0) return fmt::format("{:.1f} d", seconds / 86400);
  if (magnitude >= 3600) return fmt::format("{:.1f} h", seconds / 3600);
  if (magnitude >= 120) return fmt::format("{:.1f} min", seconds / 60);
  if (magnitude >= 1) return fmt::format("{:.2f} s", seconds);
  if (magnitude >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count < 0 ? -count : count);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<size_t>(i), ",");
  return count < 0 ? "-" + digits : digits;
}

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view name, const std::vector<std::string>& known) {
  std::optional<std::string> best;
  size_t best_distance = name.size() / 2 + 2;
  for (const std::string& candidate : known) {
    // The distance is at least the difference of the lengths: names of any length cost no more than near ones.
    if (std::max(name.size(), candidate.size()) - std::min(name.size(), candidate.size()) >= best_distance) continue;
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string name_hint(std::string_view name, const std::vector<std::string>& known) {
  if (auto near = nearest_name(name, known)) return "did you mean " + *near + "?";
  return "known: " + join(known, ", ");
}

Result<int64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc() || number < 0 || !std::isfinite(number))
    return Error{std::string(text), "is not a size", "write for example 600MiB or 24GB"};
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},      {"B", 1},        {"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
  for (const auto& [name, factor] : kUnits) {
    if (unit == name) {
      const double bytes = number * factor;
      if (bytes > 9e18) return Error{std::string(text), "is larger than any memory", ""};
      return static_cast<int64_t>(std::llround(bytes));
    }
  }
  return Error{std::string(text), "has an unknown unit",
               "use B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB"};
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

}  // namespace fivefold
