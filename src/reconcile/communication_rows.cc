#include <algorithm>
#include <map>

#include "base/text.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

using Key = std::pair<GroupKind, Purpose>;

// Of one rank: the calls that end in a step, and what of them its thread did not wait for.
struct Seconds {
  double all = 0, hidden = 0;
};

// Counts and sums of a few numbers, and what checks the run itself, are not what layouts differ in.
bool moves_tensors(Purpose purpose) {
  return purpose == Purpose::kParameters || purpose == Purpose::kGradients || purpose == Purpose::kActivations ||
         purpose == Purpose::kActivationGradients;
}

std::map<Key, Seconds> of_step(const StepRecord& step) {
  std::map<Key, Seconds> sums;
  for (const RecordedCall& call : step.calls) {
    if (!moves_tensors(call.purpose)) continue;
    Seconds& sum = sums[{call.group, call.purpose}];
    sum.all += call.end_s - call.begin_s;
    sum.hidden += std::max(0.0, call.end_s - call.begin_s - call.exposed_s);
  }
  return sums;
}

// Medians over the steady steps that have calls; empty without such a step.
std::map<Key, Seconds> measured_seconds(const RecordedSession& session) {
  std::map<Key, std::pair<std::vector<double>, std::vector<double>>> values;
  size_t num_steps = 0;
  for (size_t i = first_steady_step(session.steps.size()); i < session.steps.size(); ++i) {
    if (session.steps[i].calls.empty()) continue;
    ++num_steps;
    for (const auto& [key, sum] : of_step(session.steps[i])) {
      values[key].first.push_back(sum.all);
      values[key].second.push_back(sum.hidden);
    }
  }
  std::map<Key, Seconds> result;
  for (auto& [key, lists] : values) {
    lists.first.resize(num_steps), lists.second.resize(num_steps);  // steps without such a call have 0
    result[key] = {median(lists.first), median(lists.second)};
  }
  return result;
}

std::map<Key, Seconds> planned_seconds(const RunPlan& plan, int rank) {
  std::map<Key, Seconds> result;
  if (!plan.time) return result;
  for (const CommunicationTime& time : plan.communication_of(rank))
    if (moves_tensors(time.purpose)) result[{time.group, time.purpose}] = {time.seconds, time.hidden()};
  return result;
}

ReconcileRow row_of(const std::string& what, const Key& key, int rank, std::optional<double> predicted,
                    double measured) {
  ReconcileRow row;
  row.section = RowSection::kTime;
  row.quantity = "time." + what + "." + std::string(to_string(key.first)) + "." + std::string(to_string(key.second));
  row.rank = rank;
  row.unit = RowUnit::kSeconds;
  row.predicted = predicted;
  row.measured = measured;
  return row;
}

std::string share_text(const Seconds& seconds) {
  return seconds.all > 0 ? percent(seconds.hidden / seconds.all) : "none";
}

}  // namespace

// Of the rank whose calls take longest, waiting for peers included.
std::vector<ReconcileRow> communication_rows(const PlannedRun& run) {
  std::map<Key, std::pair<int, Seconds>> slowest;
  for (const RankRecord& rank : run.record.ranks)
    for (const auto& [key, seconds] : measured_seconds(rank.sessions.back())) {
      const auto [found, added] = slowest.try_emplace(key, rank.rank, seconds);
      if (!added && seconds.all > found->second.second.all) found->second = {rank.rank, seconds};
    }
  std::vector<ReconcileRow> rows;
  for (const auto& [key, of_rank] : slowest) {
    const auto& [rank, measured] = of_rank;
    const std::map<Key, Seconds> plan = planned_seconds(run.plan, rank);
    const auto planned = plan.find(key);
    const bool known = planned != plan.end();
    const auto predicted = [&](double Seconds::* field) {
      return known ? std::optional(planned->second.*field) : std::nullopt;
    };
    rows.push_back(row_of("communication", key, rank, predicted(&Seconds::all), measured.all));
    rows.push_back(row_of("hidden", key, rank, predicted(&Seconds::hidden), measured.hidden));
    if (known)
      rows.back().cause =
          "of its communication " + share_text(measured) + " hidden, " + share_text(planned->second) + " planned";
  }
  return rows;
}

}  // namespace fivefold
