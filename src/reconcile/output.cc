#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/table.h"
#include "base/text.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kTitles[] = {"Program",
                                        "Memory",
                                        "Traffic of a step",
                                        "Time of a step",
                                        "Pipeline: recorded CPU durations replayed, and measured waiting",
                                        "Acceptance figures"};
static_assert(std::size(kTitles) == kNumRowSections);

std::string number(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Ranks in ascending order as "0-3,5".
std::string rank_ranges(const std::vector<int>& ranks) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    texts.push_back(end - i == 1 ? std::to_string(ranks[i])
                                 : std::to_string(ranks[i]) + "-" + std::to_string(ranks[end - 1]));
    i = end;
  }
  return join(texts, ",");
}

// Rows that differ in nothing but their rank.
struct Line {
  const ReconcileRow* row;
  std::vector<int> ranks;
};

bool alike(const ReconcileRow& a, const ReconcileRow& b) {
  return a.quantity == b.quantity && a.predicted == b.predicted && a.measured == b.measured && a.bound == b.bound &&
         a.cause == b.cause;
}

// Of a section, rows of one quantity next to each other.
std::vector<Line> lines_of(const std::vector<ReconcileRow>& rows, RowSection section) {
  std::vector<std::vector<Line>> quantities;
  std::map<std::string, size_t> index_of;
  for (const ReconcileRow& row : rows) {
    if (row.section != section) continue;
    const size_t index = index_of.emplace(row.quantity, quantities.size()).first->second;
    if (index == quantities.size()) quantities.emplace_back();
    std::vector<Line>& same = quantities[index];
    const auto line = std::find_if(same.begin(), same.end(), [&row](const Line& l) { return alike(*l.row, row); });
    if (line == same.end()) {
      same.push_back({&row, {row.rank}});
    } else {
      line->ranks.push_back(row.rank);
    }
  }
  std::vector<Line> lines;
  for (const std::vector<Line>& same : quantities) lines.insert(lines.end(), same.begin(), same.end());
  return lines;
}

std::string bound_text(const ReconcileRow& row) {
  if (!row.bound) return "";
  if (*row.bound == 0) return "exact";
  std::string text(row.side == BoundSide::kAbove ? "+" : "+-");
  return text += format_value(*row.bound, row.unit);
}

std::string difference_text(const ReconcileRow& row) {
  const auto difference = row.difference();
  if (!difference) return "";
  if (*difference == 0 || (row.unit == RowUnit::kSeconds && std::abs(*difference) < kClockResolution_s)) return "0";
  std::string text = format_difference(*difference, row.unit);
  if (*row.predicted != 0 && row.unit != RowUnit::kShare) text += " (" + percent(*difference / *row.predicted) + ")";
  return text;
}

Json or_null(const std::optional<double>& value, RowUnit unit) {
  if (!value || !std::isfinite(*value)) return nullptr;
  if (unit == RowUnit::kBytes || unit == RowUnit::kCount) return std::llround(*value);
  return *value;
}

}  // namespace

std::string percent(double share) { return number(100 * share, "%.1f") + " %"; }

std::string format_value(double value, RowUnit unit) {
  const std::string sign(value < 0 ? "-" : "");
  switch (unit) {
    case RowUnit::kBytes:
      return sign + format_bytes(std::llround(std::abs(value)));
    case RowUnit::kCount:
      return sign + format_count(std::llround(std::abs(value)));
    case RowUnit::kSeconds:
      return sign + format_seconds(std::abs(value));
    case RowUnit::kShare:
      return percent(value);
    case RowUnit::kPerSecond:
      return sign + format_count(std::llround(std::abs(value))) + "/s";
    case RowUnit::kNumber:
      return number(value, "%.6g");
  }
  FIVEFOLD_CHECK(false);
}

std::string format_difference(double value, RowUnit unit) {
  std::string text(value > 0 ? "+" : "");
  return text += format_value(value, unit);
}

std::string to_text(const Reconciliation& reconciliation) {
  std::string text;
  for (int i = 0; i < kNumRowSections; ++i) {
    const std::vector<Line> lines = lines_of(reconciliation.rows, static_cast<RowSection>(i));
    if (lines.empty()) continue;
    Table table({"quantity", "rank", "predicted", "measured", "difference", "bound", "verdict"});
    std::string causes;
    for (const Line& line : lines) {
      const ReconcileRow& row = *line.row;
      const std::string ranks = row.rank == kAllRanks ? "all" : rank_ranges(line.ranks);
      table.add_row({row.quantity, ranks, row.predicted ? format_value(*row.predicted, row.unit) : "",
                     format_value(row.measured, row.unit), difference_text(row), bound_text(row),
                     !row.bound   ? ""
                     : row.pass() ? "ok"
                                  : "OUTSIDE"});
      if (!row.cause.empty()) causes += "    " + row.quantity + " (" + ranks + "): " + row.cause + "\n";
    }
    text += std::string(kTitles[i]) + "\n" + table.to_string(2) +
            (causes.empty() ? "" : "  what the differences are\n" + causes) + "\n";
  }
  for (const std::string& note : reconciliation.notes) text += "note: " + note + "\n";
  int64_t outside = 0;
  for (const ReconcileRow& row : reconciliation.rows) outside += !row.pass();
  text += outside == 0 ? "Every bounded figure is within its bound.\n"
                       : std::to_string(outside) + " figure(s) outside their bound.\n";
  return text;
}

Json to_json(const Reconciliation& reconciliation) {
  Json rows = Json::array();
  for (const ReconcileRow& row : reconciliation.rows)
    rows.push_back({{"quantity", row.quantity},
                    {"rank", row.rank == kAllRanks ? Json(nullptr) : Json(row.rank)},
                    {"predicted", or_null(row.predicted, row.unit)},
                    {"measured", or_null(row.measured, row.unit)},
                    {"difference", or_null(row.difference(), row.unit)},
                    {"bound", or_null(row.bound, row.unit)},
                    {"pass", row.pass()},
                    {"cause", row.cause}});
  return {{"pass", reconciliation.pass()}, {"rows", std::move(rows)}, {"notes", reconciliation.notes}};
}

}  // namespace fivefold
