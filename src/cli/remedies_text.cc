#include "cli/remedies_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/table.h"
#include "base/text.h"
#include "cli/output.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

// What of the run's result a remedy changes.
std::string_view changed_result(RemedyKind kind) {
  switch (kind) {
    case RemedyKind::kMicrobatch:
    case RemedyKind::kRecomputeTensors:
    case RemedyKind::kRecomputeLayers:
    case RemedyKind::kSharding:
    case RemedyKind::kMoreRanks:
      return "nothing";
    case RemedyKind::kComputeType:
    case RemedyKind::kOptimizerStates:
    case RemedyKind::kMaster:
      return "rounding";
    case RemedyKind::kAdapterRank:
    case RemedyKind::kLora:
      return "what is trained";
    case RemedyKind::kQlora:
      return "what is trained, rounding";
    case RemedyKind::kSequence:
      return "what a sequence sees";
  }
  FIVEFOLD_CHECK(false);
}

// To paste: in lines that a shell joins.
std::string set_flags(const Remedy& remedy, const std::string& indent) {
  constexpr size_t kColumns = 100;
  std::string text, line = indent;
  for (const std::string& setting : remedy.settings) {
    const std::string flag = "--set " + setting;
    if (line != indent && line.size() + 1 + flag.size() + 2 > kColumns) {
      text += line + " \\\n";
      line = indent;
    }
    line += (line == indent ? "" : " ") + flag;
  }
  return text + line + "\n";
}

std::string speed_change(const Need& before, const Need& after) {
  return fmt::format("{:+.0f} %", 100 * (after.tokens_per_s / before.tokens_per_s - 1));
}

std::string saved(const Need& before, const Need& after) { return format_bytes(before.peak - after.peak); }

// The table's rows, each with its settings below.
std::string with_settings(const std::string& table, const std::vector<Remedy>& remedies) {
  constexpr size_t kHeadLines = 2;
  std::string text;
  size_t number = 0;
  for (const std::string& line : split(table, '\n')) {
    if (line.empty()) continue;
    text += line + "\n";
    if (number++ >= kHeadLines) text += set_flags(remedies[number - 1 - kHeadLines], "    ");
  }
  return text;
}

Json remedy_json(const Need& before, const Remedy& remedy) {
  return {{"remedy", to_string(remedy.kind)},         {"set", remedy.settings},
          {"saves", before.peak - remedy.need.peak},  {"peak", remedy.need.peak},
          {"capacity", remedy.need.capacity},         {"fits", remedy.need.fits()},
          {"tokens_per_s", remedy.need.tokens_per_s}, {"changes", changed_result(remedy.kind)}};
}

}  // namespace

std::string remedies_text(const RemedyList& list, std::string_view of) {
  const Need& before = list.before;
  std::string text =
      painted(Paint::kHeading, fmt::format("Remedies{}, in the order to try them, each alone", of)) + "\n";
  Table table({"remedy", "saves", "peak", "fits", "tokens/s", "changes"});
  for (const Remedy& remedy : list.each)
    table.add_row({std::string(to_string(remedy.kind)), saved(before, remedy.need), format_bytes(remedy.need.peak),
                   remedy.need.fits() ? "yes" : "no", speed_change(before, remedy.need),
                   std::string(changed_result(remedy.kind))});
  text += list.each.empty() ? "  none: no setting that can be run needs less\n"
                            : with_settings(table.to_string(2), list.each);
  if (list.together) {
    const Need& need = list.together->need;
    text += fmt::format("None is enough alone. Together: {} of {}, {} tokens/s\n", format_bytes(need.peak),
                        format_bytes(need.capacity), speed_change(before, need)) +
            set_flags(*list.together, "  ");
  } else if (!before.fits() && !list.each.empty()) {
    bool enough = false;
    for (const Remedy& remedy : list.each) enough = enough || remedy.need.fits();
    if (!enough) text += "None is enough, nor are all together.\n";
  }
  return text;
}

Json remedies_json(const RemedyList& list) {
  Json json{{"peak", list.before.peak}, {"capacity", list.before.capacity}, {"each", Json::array()}};
  for (const Remedy& remedy : list.each) json["each"].push_back(remedy_json(list.before, remedy));
  json["together"] = list.together ? remedy_json(list.before, *list.together) : Json();
  return json;
}

}  // namespace fivefold
