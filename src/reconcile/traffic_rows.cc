#include <algorithm>
#include <map>
#include <tuple>

#include "base/text.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

using Key = std::tuple<CollectiveKind, GroupKind, Purpose>;
struct Amount {
  int64_t calls = 0, bytes = 0;
  auto operator<=>(const Amount&) const = default;
};

std::string key_name(const Key& key) {
  return std::string(to_string(std::get<0>(key))) + "." + std::string(to_string(std::get<1>(key))) + "." +
         std::string(to_string(std::get<2>(key)));
}

std::vector<std::map<Key, Amount>> amounts_by_step(const RecordedSession& session) {
  std::vector<std::map<Key, Amount>> steps;
  for (const StepRecord& step : session.steps) {
    steps.emplace_back();
    for (const RecordedTraffic& line : step.traffic)
      steps.back()[{line.kind, line.group, line.purpose}] = {line.calls, line.bytes};
  }
  return steps;
}

Amount of(const std::map<Key, Amount>& amounts, const Key& key) {
  const auto found = amounts.find(key);
  return found == amounts.end() ? Amount{} : found->second;
}

// How one step's amount differs from the plan's.
std::string amount_cause(const Amount& planned, const Amount& measured) {
  if (planned == measured) return "";
  if (measured.calls == 0) return "never called";
  if (planned.calls == 0) return "not in the plan";
  if (planned.calls != measured.calls)
    return std::to_string(measured.calls) + " calls of on average " + format_bytes(measured.bytes / measured.calls) +
           " instead of " + std::to_string(planned.calls) + " of " + format_bytes(planned.bytes / planned.calls);
  const double ratio =
      planned.bytes == 0 ? 0.0 : static_cast<double>(measured.bytes) / static_cast<double>(planned.bytes);
  if (ratio == 2.0 || ratio == 0.5)
    return std::string("as many calls with ") + (ratio == 2.0 ? "twice" : "half") +
           " the bytes each: an element type of another size on the wire";
  return "as many calls with other sizes";
}

// The step that is farthest from the plan, and how many differ.
std::string steps_cause(const RecordedSession& session, const Amount& planned, const std::vector<Amount>& steps,
                        size_t worst) {
  const auto differing = std::count_if(steps.begin(), steps.end(), [&](const Amount& a) { return a != planned; });
  std::string text = amount_cause(planned, steps[worst]);
  if (text.empty() || differing == static_cast<int64_t>(steps.size())) return text;
  text += "; in " + std::to_string(differing) + " of " + std::to_string(steps.size()) + " steps, step " +
          std::to_string(session.steps[worst].step);
  const std::string special = circumstance(session, session.steps[worst].step);
  return special.empty() ? text : text + " (" + special + ")";
}

}  // namespace

std::vector<ReconcileRow> traffic_rows(const PlannedRun& run) {
  std::vector<ReconcileRow> rows;
  for (const RankRecord& rank : run.record.ranks) {
    std::map<Key, Amount> plan;
    for (const TrafficLine& line : run.plan.traffic_of(rank.rank))
      plan[{line.kind, line.group, line.purpose}] = {line.calls, line.bytes};
    const RecordedSession& session = rank.sessions.back();
    const std::vector<std::map<Key, Amount>> measured = amounts_by_step(session);
    std::map<Key, Amount> keys = plan;
    for (const auto& step : measured)
      for (const auto& [key, amount] : step) keys.emplace(key, Amount{});
    for (const auto& [key, planned] : keys) {
      std::vector<Amount> steps;
      for (const auto& step : measured) steps.push_back(of(step, key));
      const auto distance = [&planned](const Amount& a) {
        return std::pair(std::abs(a.bytes - planned.bytes), std::abs(a.calls - planned.calls));
      };
      const size_t worst = static_cast<size_t>(
          std::max_element(steps.begin(), steps.end(),
                           [&](const Amount& a, const Amount& b) { return distance(a) < distance(b); }) -
          steps.begin());
      ReconcileRow row;
      row.section = RowSection::kTraffic;
      row.rank = rank.rank;
      row.bound = 0;
      row.cause = steps_cause(session, planned, steps, worst);
      row.quantity = "traffic.calls." + key_name(key);
      row.unit = RowUnit::kCount;
      row.predicted = static_cast<double>(planned.calls);
      row.measured = static_cast<double>(steps[worst].calls);
      rows.push_back(row);
      row.quantity = "traffic.bytes." + key_name(key);
      row.unit = RowUnit::kBytes;
      row.predicted = static_cast<double>(planned.bytes);
      row.measured = static_cast<double>(steps[worst].bytes);
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace fivefold
