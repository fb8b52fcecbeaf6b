#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

constexpr double kStepBound = 0.30;    // of the predicted time: the fastest step
constexpr double kNotableShare = 0.1;  // of a part's time: what is less is not named as a cause
constexpr double kOnCore = 0.9;        // CPU time / wall time below which a computing thread was kept waiting

std::string seconds_text(double seconds) { return format_seconds(seconds); }

// Rank that spends most, and least, on a part.
struct Spread {
  size_t slowest = 0, fastest = 0;
};
Spread spread_of(const std::vector<PartSeconds>& ranks, StepPart part) {
  Spread spread;
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i][part] > ranks[spread.slowest][part]) spread.slowest = i;
    if (ranks[i][part] < ranks[spread.fastest][part]) spread.fastest = i;
  }
  return spread;
}

double computing_seconds(const PartSeconds& parts) {
  double sum = 0;
  for (int i = 0; i < kNumStepParts; ++i)
    if (computes(static_cast<StepPart>(i))) sum += parts.seconds[static_cast<size_t>(i)];
  return sum;
}

int64_t rank_tokens(const PlannedRun& run) {
  return run.plan.config.tokens_per_step / static_cast<int64_t>(run.record.ranks.size());
}

// Why computing took what it took: kept off its core, one slow rank, slower beside other ranks.
std::vector<std::string> computing_causes(const PlannedRun& run, const MeasuredTime& time, StepPart part,
                                          const PlannedRun* baseline, const MeasuredTime* baseline_time) {
  std::vector<std::string> causes;
  const Spread spread = spread_of(time.parts, part);
  const double slowest = time.parts[spread.slowest][part], fastest = time.parts[spread.fastest][part];
  const double on_core = time.cpu[spread.slowest][part] / slowest;
  if (on_core < kOnCore)
    causes.push_back("the thread had a core for " + percent(on_core) + " of it: other work on the machine");
  if (slowest - fastest > kNotableShare * slowest)
    causes.push_back("rank " + std::to_string(spread.slowest) + " takes " + seconds_text(slowest) + ", rank " +
                     std::to_string(spread.fastest) + " " + seconds_text(fastest));
  if (baseline_time && !baseline_time->parts.empty() && baseline->record.ranks.size() < run.record.ranks.size()) {
    const double per_token = slowest / static_cast<double>(rank_tokens(run));
    const double alone = baseline_time->parts[0][part] / static_cast<double>(rank_tokens(*baseline));
    if (alone > 0 && per_token > (1 + kNotableShare) * alone)
      causes.push_back("per token " + percent(per_token / alone - 1) + " more than with " +
                       std::to_string(baseline->record.ranks.size()) + " rank(s): ranks share memory and caches");
  }
  return causes;
}

// Waiting for a collective is waiting for the rank that computes longest, or for the wire.
std::vector<std::string> waiting_causes(const MeasuredTime& time, StepPart part) {
  const size_t waiter = spread_of(time.parts, part).slowest;
  size_t busiest = 0;
  for (size_t i = 1; i < time.parts.size(); ++i)
    if (computing_seconds(time.parts[i]) > computing_seconds(time.parts[busiest])) busiest = i;
  const double late = computing_seconds(time.parts[busiest]) - computing_seconds(time.parts[waiter]);
  const double waited = time.parts[waiter][part];
  if (late > kNotableShare * waited)
    return {"rank " + std::to_string(waiter) + " waits for rank " + std::to_string(busiest) + ", which computes " +
            seconds_text(late) + " longer"};
  return waited > 0 ? std::vector<std::string>{"ranks compute equally long: the collectives themselves are waited for"}
                    : std::vector<std::string>{};
}

std::string part_cause(const PlannedRun& run, const MeasuredTime& time, StepPart part, std::optional<double> predicted,
                       double measured, const PlannedRun* baseline, const MeasuredTime* baseline_time) {
  if (measured == 0) return "";
  if (predicted && std::abs(measured - *predicted) <= kNotableShare * *predicted) return "";
  if (part == StepPart::kBetween) {
    const auto count = static_cast<double>(run.plan.program.instructions.size());
    return format_seconds(measured / count) + " for each of " + format_count(static_cast<int64_t>(count)) +
           " instructions: reading clocks, and a core lost between them";
  }
  return join(computes(part) ? computing_causes(run, time, part, baseline, baseline_time) : waiting_causes(time, part),
              "; ");
}

// Parts that explain the difference of a step, largest first, until nine tenths of all differences are named.
std::string attribution(const PartSeconds& measured, const PartSeconds& predicted) {
  std::vector<std::pair<double, StepPart>> differences;
  double all = 0, net = 0;
  for (int i = 0; i < kNumStepParts; ++i) {
    const auto part = static_cast<StepPart>(i);
    differences.emplace_back(measured[part] - predicted[part], part);
    all += std::abs(differences.back().first);
    net += differences.back().first;
  }
  std::sort(differences.begin(), differences.end(),
            [](const auto& a, const auto& b) { return std::abs(a.first) > std::abs(b.first); });
  std::vector<std::string> texts;
  double named = 0;
  for (const auto& [difference, part] : differences) {
    if (named >= 0.9 * all || std::abs(difference) < kClockResolution_s) break;
    named += std::abs(difference);
    std::string text = std::string(to_string(part)) + " " + format_difference(difference, RowUnit::kSeconds);
    if (std::abs(net) >= kClockResolution_s) text += " (" + percent(difference / net) + ")";
    texts.push_back(std::move(text));
  }
  return texts.empty() ? "" : "of the difference: " + join(texts, ", ");
}

ReconcileRow seconds_row(std::string quantity, std::optional<double> predicted, double measured) {
  ReconcileRow row;
  row.section = RowSection::kTime;
  row.quantity = std::move(quantity);
  row.unit = RowUnit::kSeconds;
  row.predicted = predicted;
  row.measured = measured;
  return row;
}

std::string first_step_cause(const MeasuredTime& time) {
  const double extra = time.first_s - time.step_s;
  if (extra <= 0 || !time.first_has_times || time.parts.empty()) return "";
  return "the libraries make their kernels and memory is touched for the first time; " +
         attribution(time.first_parts, time.parts[0]);
}

}  // namespace

std::vector<ReconcileRow> time_rows(const PlannedRun& run, const MeasuredTime& time, const PlannedRun* baseline,
                                    const MeasuredTime* baseline_time) {
  const std::optional<PlannedTime>& plan = run.plan.time;
  std::vector<ReconcileRow> rows;
  // The rank that computes longest sets the pace; its parts add up to its step.
  size_t pace = 0;
  for (size_t i = 1; i < time.parts.size(); ++i)
    if (computing_seconds(time.parts[i]) > computing_seconds(time.parts[pace])) pace = i;
  for (int i = 0; i < kNumStepParts && !time.parts.empty(); ++i) {
    const auto part = static_cast<StepPart>(i);
    const std::optional<double> predicted =
        plan ? std::optional(run.plan.parts_of(static_cast<int>(pace))[part]) : std::nullopt;
    const double measured = time.parts[pace][part];
    if (predicted.value_or(0) == 0 && measured == 0) continue;
    rows.push_back(seconds_row("time." + std::string(to_string(part)), predicted, measured));
    rows.back().rank = static_cast<int>(pace);
    rows.back().cause = part_cause(run, time, part, predicted, measured, baseline, baseline_time);
  }
  const std::optional<double> predicted = plan ? std::optional(plan->step_s) : std::nullopt;
  rows.push_back(seconds_row("time.step", predicted, time.step_s));
  rows.back().cause =
      plan && !time.parts.empty() ? attribution(time.parts[pace], run.plan.parts_of(static_cast<int>(pace))) : "";
  rows.push_back(seconds_row("time.step_fastest", predicted, time.fastest_s));
  if (plan && plan->calibrated) rows.back().bound = kStepBound * *predicted;
  if (time.step_s - time.fastest_s > kNotableShare * time.step_s)
    rows.back().cause = "steps vary: the median is " + percent(time.step_s / time.fastest_s - 1) + " above the fastest";
  rows.push_back(seconds_row("time.first_step", std::nullopt, time.first_s));
  rows.back().cause = first_step_cause(time);
  return rows;
}

}  // namespace fivefold
