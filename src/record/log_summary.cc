#include "record/log_summary.h"

#include <algorithm>
#include <map>
#include <utility>

namespace fivefold {
namespace {

using Member = std::optional<double> LoggedStep::*;

std::optional<double> quantile(std::vector<double> values, double share) {
  if (values.empty()) return std::nullopt;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::vector<double> values_of(const std::vector<const LoggedStep*>& steps, Member member) {
  std::vector<double> values;
  for (const LoggedStep* step : steps)
    if (const auto& value = step->*member; value && *value > 0) values.push_back(*value);
  return values;
}

// Without the first line of each session and rank, and others before the session's fourth step.
std::vector<const LoggedStep*> settled_steps(const ForeignLog& log) {
  std::map<std::pair<int, int>, int64_t> first;
  std::vector<const LoggedStep*> settled;
  for (const LoggedStep& step : log.steps) {
    const auto [at, is_first] = first.emplace(std::pair(step.rank, step.session), step.step);
    if (!is_first && step.step >= at->second + kWarmupSteps) settled.push_back(&step);
  }
  return settled;
}

// Slope of the progress bar behind its warm-up: its clock has whole seconds.
std::optional<double> bar_seconds(const ForeignLog& log) {
  if (log.progress.size() < 2) return std::nullopt;
  const ProgressPoint& last = log.progress.back();
  for (const ProgressPoint& point : log.progress) {
    if (point.done < kWarmupSteps) continue;
    if (point.done >= last.done || last.elapsed_s <= point.elapsed_s) break;
    return (last.elapsed_s - point.elapsed_s) / static_cast<double>(last.done - point.done);
  }
  return std::nullopt;
}

void take_step_seconds(const ForeignLog& log, const std::vector<const LoggedStep*>& steps, LogSummary& summary) {
  const std::vector<double> seconds = values_of(steps, &LoggedStep::seconds);
  if (const auto median = quantile(seconds, 0.5)) {
    summary.step_seconds = median;
    summary.spread = *quantile(seconds, 0.9) / *median - 1;
  } else if (const auto slope = bar_seconds(log)) {
    summary.step_seconds = slope;
    summary.notes.emplace_back("step time: from the progress bar's clock, in whole seconds");
  } else if (log.whole.steps_per_s && *log.whole.steps_per_s > 0) {
    summary.step_seconds = 1 / *log.whole.steps_per_s;
    summary.notes.emplace_back(
        "step time: the average of the whole training, with warm-up, evaluation and checkpoints in it");
  }
}

}  // namespace

LogSummary summarize(const ForeignLog& log) {
  LogSummary summary;
  std::vector<const LoggedStep*> steps = settled_steps(log);
  summary.left_out = static_cast<int64_t>(log.steps.size() - steps.size());
  if (steps.empty() && !log.steps.empty()) {
    for (const LoggedStep& step : log.steps) steps.push_back(&step);
    summary.left_out = 0;
    summary.notes.emplace_back("there are no lines behind the warm-up: its steps are in the figures");
  } else if (summary.left_out > 0) {
    summary.notes.push_back(std::to_string(summary.left_out) + " line(s) of warm-up left out: the first of each start" +
                            " and what is before its step " + std::to_string(kWarmupSteps + 1));
  }
  summary.lines = static_cast<int64_t>(steps.size());
  for (const LoggedStep& step : log.steps) summary.sessions = std::max<int64_t>(summary.sessions, step.session + 1);
  if (summary.sessions > 1)
    summary.notes.push_back(std::to_string(summary.sessions) + " starts in the log: each has its warm-up");
  if (log.cut_lines > 0) summary.notes.push_back(std::to_string(log.cut_lines) + " cut line(s) not used");
  take_step_seconds(log, steps, summary);
  summary.tokens_per_s = quantile(values_of(steps, &LoggedStep::tokens_per_s), 0.5);
  summary.flops_per_s = quantile(values_of(steps, &LoggedStep::flops_per_s), 0.5);
  summary.samples = quantile(values_of(steps, &LoggedStep::samples), 0.5);
  summary.grad_norm = quantile(values_of(steps, &LoggedStep::grad_norm), 0.5);
  for (const LoggedStep* step : steps)
    if (step->loss) summary.last_loss = step->loss;
  return summary;
}

}  // namespace fivefold
