#include "cli/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/table.h"
#include "base/text.h"
#include "cli/explain_text.h"
#include "cli/five_steps.h"
#include "cli/output.h"
#include "cli/plan_json.h"
#include "cli/remedies_text.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

std::string heading(std::string_view text) { return painted(Paint::kHeading, text) + "\n"; }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string steps_text(const SearchRequest& request, const SearchResult& result) {
  std::string text;
  int number = 1;
  for (const DecisionStep& step : five_steps(request, result)) {
    text += heading(fmt::format("{}. {}", number++, step.title));
    for (const std::string& line : step.lines) text += "   " + line + "\n";
  }
  return text;
}

std::string plans_table(const SearchResult& result) {
  Table table({"layout", "ranks", "peak", "step", "tokens/s", "MFU"});
  for (const Candidate& plan : result.plans)
    table.add_row({layout_text(plan.config), std::to_string(plan.config.degrees.world()),
                   format_bytes(plan.ledger.peak_total), format_seconds(plan.cost.seconds),
                   fmt::format("{:.0f}", plan.tokens_per_s), percent(plan.mfu)});
  return table.to_string(2);
}

// By how much another plan is slower and in which parts of the step, or that it is not, and asks more of its owner.
std::string losing_reason(const Candidate& best, const Candidate& other) {
  const double change = other.cost.seconds / best.cost.seconds - 1;
  std::vector<std::pair<double, TimePart>> parts;
  for (int i = 0; i < kNumTimeParts; ++i) {
    const auto part = static_cast<TimePart>(i);
    const double more = other.cost[part] - best.cost[part];
    if (std::abs(more) >= 0.005 * best.cost.seconds) parts.emplace_back(more, part);
  }
  std::ranges::stable_sort(parts, [](const auto& a, const auto& b) { return std::abs(a.first) > std::abs(b.first); });
  std::vector<std::string> words;
  for (const auto& [more, part] : parts)
    if (words.size() < 3)
      words.push_back(fmt::format("{} {}{}", to_string(part), more > 0 ? "+" : "-", format_seconds(std::abs(more))));
  const std::string where = words.empty() ? "" : ": " + join(words, ", ");
  if (change < 0) return fmt::format("{:.1f} % faster, and less simple{}", -100 * change, where);
  return fmt::format("{:.1f} % slower{}", 100 * change, where);
}

std::string rejected_text(const SearchResult& result) {
  std::string text;
  for (size_t i = 1; i < result.plans.size(); ++i)
    text += fmt::format("  {}\n    {}\n", layout_text(result.plans[i].config),
                        losing_reason(result.plans[0], result.plans[i]));
  for (const Rejection& rejection : result.rejected) {
    text += fmt::format("  {}{}\n    {}\n", rejection.kind,
                        rejection.config ? ": " + layout_text(*rejection.config) : "", rejection.reason);
    if (!rejection.fix.empty()) text += fmt::format("    -> {}\n", rejection.fix);
  }
  return text;
}

std::string_view name_of(MethodKind kind) {
  switch (kind) {
    case MethodKind::kFull:
      return "Full training";
    case MethodKind::kLora:
      return "LoRA";
    case MethodKind::kQlora:
      return "QLoRA";
  }
  FIVEFOLD_CHECK(false);
}

std::string ranks_text(int count) { return count == 1 ? std::string("1 rank") : fmt::format("{} ranks", count); }

int64_t missing_bytes(const SearchResult& result) { return result.smallest_peak - result.smallest_capacity; }

// By how much what was searched does not fit, from the `first`-th on.
std::string shortfalls_text(const MethodSearch& search, size_t first) {
  std::string text;
  for (size_t i = first; i < search.tried.size() && !search.tried[i].fits(); ++i) {
    const auto& [request, result] = search.tried[i];
    const std::string_view name = name_of(request.base.method.kind);
    const std::string verdict = i == 0 ? fmt::format("{} does not fit {}", name, ranks_text(request.rank_counts.back()))
                                       : fmt::format("Nor does {}", name);
    text +=
        painted(Paint::kBad, fmt::format("{} ({}): it needs at least {}, {} more than the {} that a rank may fill.",
                                         verdict, to_string(result.obstacle), format_bytes(result.smallest_peak),
                                         format_bytes(missing_bytes(result)), format_bytes(result.smallest_capacity))) +
        "\n";
  }
  return text;
}

// That the plan is not of what was asked for, and why. Nothing where it is.
std::string instead_text(const MethodSearch& search) {
  if (!search.went_on() || !search.answer().fits()) return "";
  const MethodConfig& method = search.answer().request.base.method;
  return shortfalls_text(search, 0) +
         fmt::format("Planned instead: {} (method.kind = {}, rank = {}, targets = {}), {} a rank.\n",
                     name_of(method.kind), to_string(method.kind), method.rank, join(method.targets, ", "),
                     format_bytes(search.answer().result.plans[0].ledger.peak_total)) +
         "A method.kind that is set stays as it is.\n\n";
}

std::string fixes_text(const SearchResult& result, const std::string& title) {
  std::string text = heading(title);
  for (const Fix& fix : result.fixes) text += fmt::format("  {}\n    {}\n", fix.change, fix.price);
  if (result.remedies) text += "\n" + remedies_text(*result.remedies, " of the layout that needs least");
  return text;
}

std::string no_fit_text(const MethodSearch& search) {
  const SearchResult& result = search.answer().result;
  std::string text = painted(Paint::kBad, fmt::format("Nothing fits: {}. The least that any layout needs is {}.",
                                                      to_string(result.obstacle), format_bytes(result.smallest_peak))) +
                     "\n";
  text += shortfalls_text(search, 1);
  return text + fixes_text(result, "What would make it fit");
}

// An adapter may need fewer devices than any split of full training.
std::string methods_text(const MethodSearch& search) {
  if (search.needs.empty()) return "";
  std::vector<std::string> words;
  const int most = search.answer().request.rank_counts.back();
  for (const MethodNeed& need : search.needs) {
    const std::string least =
        need.ranks == 0 ? "does not fit " + ranks_text(most)
                        : fmt::format("needs at least {}, {} each", ranks_text(need.ranks), format_bytes(need.peak));
    words.push_back(fmt::format("  {} {}\n", to_string(need.kind), least));
  }
  return heading("An adapter instead of a split") + join(words, "") + "\n";
}

std::string wall_text(const SearchResult& result) {
  switch (result.wall) {
    case Wall::kMemory:
      return "memory: faster layouts do not fit";
    case Wall::kCommunication:
      return "communication: it takes over a quarter of the step";
    case Wall::kCompute:
      return "compute: no faster layout is kept out by memory, and communication is mostly hidden";
  }
  FIVEFOLD_CHECK(false);
}

Json no_fit_json(const SearchResult& result) {
  Json json{{"kind", to_string(result.obstacle)},
            {"smallest_peak", result.smallest_peak},
            {"capacity", result.smallest_capacity},
            {"missing", missing_bytes(result)},
            {"fixes", Json::array()}};
  for (const Fix& fix : result.fixes) json["fixes"].push_back({{"change", fix.change}, {"price", fix.price}});
  if (result.remedies) json["remedies"] = remedies_json(*result.remedies);
  return json;
}

}  // namespace

std::string plan_text(const MethodSearch& search) {
  const auto& [request, result] = search.answer();
  const int ranks = result.plans.empty() ? request.rank_counts.back() : result.plans[0].config.degrees.world();
  std::string text = heading(fmt::format("{} on {} x {}{}", request.model.name, ranks, request.hardware.device.name,
                                         simulated_text(request.hardware)));
  if (const std::vector<std::string> fixed = fixed_text(request.fixed, request.base); !fixed.empty())
    text += fmt::format("as configured: {}\n", join(fixed, ", "));
  text += "\n" + instead_text(search);
  text += steps_text(request, result) + "\n";
  if (result.plans.empty()) {
    text += no_fit_text(search);
  } else {
    const Candidate& best = result.plans[0];
    text += heading("Plans, best first") + plans_table(result);
    text += fmt::format("  bound by {}\n\n", wall_text(result));
    const std::string whose =
        best.config.degrees.pp > 1 ? fmt::format(", of rank {}, which needs most", best.rank) : "";
    text += heading("Ledger of the best" + whose) + memory_table(best.ledger) +
            fmt::format("  {} of {} that may be filled; error bound {}\n", format_bytes(best.ledger.peak_total),
                        format_bytes(best.capacity), "1 %");
    text += time_table(best.cost);
  }
  text += "\n" + methods_text(search);
  if (search.went_on() && search.answer().fits())
    text += fixes_text(search.tried[0].result, "What would make full training fit") + "\n";
  text += heading("Why the rest loses") + rejected_text(result);
  return text +
         fmt::format("\n{} bounds of layouts computed, {} layouts replayed\n", result.evaluated, result.replayed);
}

Json plan_json(const MethodSearch& search, double wall_seconds) {
  const auto& [request, result] = search.answer();
  Json json{{"fits", !result.plans.empty()},
            {"method", to_string(request.base.method.kind)},
            {"steps", Json::array()},
            {"plans", Json::array()},
            {"rejected", Json::array()}};
  for (const DecisionStep& step : five_steps(request, result)) {
    Json numbers = Json::object();
    for (const auto& [name, value] : step.numbers) numbers[name] = value;
    json["steps"].push_back({{"title", step.title}, {"lines", step.lines}, {"numbers", numbers}});
  }
  for (const Candidate& plan : result.plans) json["plans"].push_back(candidate_json(plan, request.hardware));
  for (const Rejection& rejection : result.rejected)
    json["rejected"].push_back(
        {{"kind", rejection.kind},
         {"parallel", rejection.config ? parallel_json(rejection.config->config.parallel) : Json()},
         {"layout", rejection.config ? Json(layout_text(*rejection.config)) : Json()},
         {"reason", rejection.reason},
         {"fix", rejection.fix}});
  if (result.plans.empty())
    json["does_not_fit"] = no_fit_json(result);
  else
    json["wall"] = to_string(result.wall);
  for (const MethodResult& method : search.tried) {
    if (method.fits() || !search.went_on()) continue;
    Json unfit = no_fit_json(method.result);
    unfit["method"] = to_string(method.request.base.method.kind);
    json["methods_that_do_not_fit"].push_back(unfit);
  }
  for (const MethodNeed& need : search.needs)
    json["methods"].push_back({{"method", to_string(need.kind)},
                               {"gpus", need.ranks == 0 ? Json() : Json(need.ranks)},
                               {"peak", need.ranks == 0 ? Json() : Json(need.peak)}});
  json["fixed"] = fixed_text(request.fixed, request.base);
  json["evaluated"] = result.evaluated;
  json["replayed"] = result.replayed;
  json["wall_time"] = wall_seconds;
  return json;
}

std::string cards_text(const SearchRequest& request, const std::vector<CardsRow>& rows) {
  Table table({"cards", "method", "layout", "peak", "tokens/s"});
  std::map<int, MethodKind> use;  // the first of a number of cards that fits
  int before = rows.empty() ? 0 : rows[0].cards;
  for (const CardsRow& row : rows) {
    if (row.cards != before) table.add_rule();
    before = row.cards;
    const std::string cards = std::to_string(row.cards), method(to_string(row.method));
    if (!row.result.ok()) {
      table.add_row({cards, method, row.result.error().problem, "", ""});
    } else if (row.result->plans.empty()) {
      table.add_row({cards, method, "does not fit: " + std::string(to_string(row.result->obstacle)),
                     format_bytes(row.result->smallest_peak), ""});
    } else {
      use.emplace(row.cards, row.method);
      table.add_row({cards, method, layout_text(row.result->plans[0].config),
                     format_bytes(row.result->plans[0].ledger.peak_total),
                     fmt::format("{:.0f}", row.result->plans[0].tokens_per_s)});
    }
  }
  std::vector<std::string> words;
  for (const auto& [cards, method] : use) words.push_back(fmt::format("{}: {}", cards, to_string(method)));
  std::string text = heading(fmt::format("{} on {}{}", request.model.name, request.hardware.device.name,
                                         simulated_text(request.hardware))) +
                     table.to_string(2);
  if (!words.empty()) text += fmt::format("  most that can be trained, by cards: {}\n", join(words, ", "));
  return text;
}

Json cards_json(const std::vector<CardsRow>& rows, const HardwareSpec& hardware) {
  Json json{{"cards", Json::array()}};
  for (const CardsRow& row : rows) {
    Json entry{{"gpus", row.cards}, {"method", to_string(row.method)}};
    entry["fits"] = row.result.ok() && !row.result->plans.empty();
    if (!row.result.ok())
      entry["reason"] = row.result.error().message();
    else if (row.result->plans.empty())
      entry["reason"] = to_string(row.result->obstacle);
    else
      entry["plan"] = candidate_json(row.result->plans[0], hardware);
    json["cards"].push_back(entry);
  }
  return json;
}

}  // namespace fivefold
