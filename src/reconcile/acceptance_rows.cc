#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

using Rows = std::vector<ReconcileRow>;

ReconcileRow& add(Rows& rows, std::string quantity, RowUnit unit, std::optional<double> predicted, double measured) {
  ReconcileRow row;
  row.section = RowSection::kAcceptance;
  row.quantity = std::move(quantity);
  row.unit = unit;
  row.predicted = predicted;
  row.measured = measured;
  rows.push_back(std::move(row));
  return rows.back();
}

double tokens_per_s(const PlannedRun& run, double step_s) {
  return static_cast<double>(run.plan.config.tokens_per_step) / step_s;
}

double num_ranks(const PlannedRun& run) { return static_cast<double>(run.record.ranks.size()); }

void add_throughput(Rows& rows, const PlannedRun& run, const MeasuredTime& time) {
  const std::optional<PlannedTime>& plan = run.plan.time;
  const auto predicted = [&](double numerator) {
    return plan ? std::optional(numerator / plan->step_s) : std::nullopt;
  };
  const auto tokens = static_cast<double>(run.plan.config.tokens_per_step);
  add(rows, "tokens_per_s", RowUnit::kPerSecond, predicted(tokens), tokens / time.step_s);
  add(rows, "tokens_per_s_per_rank", RowUnit::kPerSecond, predicted(tokens / num_ranks(run)),
      tokens / num_ranks(run) / time.step_s);
  if (!plan || plan->peak_flops_per_s <= 0) return;
  const auto utilisation = [&](const std::string& name, double flops) {
    const double share = flops / plan->peak_flops_per_s;
    add(rows, name, RowUnit::kShare, predicted(share), share / time.step_s);
  };
  utilisation("mfu.causal_attention", run.plan.flops.model_causal());
  utilisation("mfu.full_attention", run.plan.flops.model_full());
  utilisation("hfu.causal_attention", run.plan.flops.hardware_causal());
  utilisation("hfu.full_attention", run.plan.flops.hardware_full());
}

double exposed(const PartSeconds& parts) {
  return parts[StepPart::kExposedGathers] + parts[StepPart::kExposedReductions] + parts[StepPart::kTokenCount];
}

void add_communication(Rows& rows, const PlannedRun& run, const MeasuredTime& time) {
  if (time.parts.empty()) return;
  double most = 0;
  for (const PartSeconds& parts : time.parts) most = std::max(most, exposed(parts));
  const auto& plan = run.plan.time;
  add(rows, "exposed_communication", RowUnit::kShare,
      plan ? std::optional(exposed(plan->parts) / plan->step_s) : std::nullopt, most / time.step_s)
      .cause = "of the rank that waits most";
}

void add_scaling(Rows& rows, const PlannedRun& run, const MeasuredTime& time, const PlannedRun& baseline,
                 const MeasuredTime& baseline_time) {
  const auto per_rank = [](const PlannedRun& of, double step_s) { return tokens_per_s(of, step_s) / num_ranks(of); };
  std::optional<double> predicted;
  if (run.plan.time && baseline.plan.time)
    predicted = per_rank(run, run.plan.time->step_s) / per_rank(baseline, baseline.plan.time->step_s);
  const double here = per_rank(run, time.step_s), there = per_rank(baseline, baseline_time.step_s);
  add(rows, "scaling_efficiency", RowUnit::kShare, predicted, here / there).cause =
      format_count(std::llround(here)) + " tokens/s a rank against " + format_count(std::llround(there)) + " with " +
      std::to_string(baseline.record.ranks.size()) + " rank(s)";
}

void add_goodput(Rows& rows, const PlannedRun& run) {
  const WallTime wall = measure_wall_time(run.record.ranks[0]);
  if (wall.total_s <= 0) return;
  const auto share = [&](double seconds) { return seconds / wall.total_s; };
  const int64_t checkpoints = [&] {
    int64_t count = 0;
    for (const RecordedSession& session : run.record.ranks[0].sessions)
      count += static_cast<int64_t>(session.checkpoints.size());
    return count;
  }();
  add(rows, "goodput", RowUnit::kShare, std::nullopt, share(wall.steps_s)).cause =
      format_seconds(wall.steps_s) + " of steps in " + format_seconds(wall.total_s);
  add(rows, "lost.checkpoints", RowUnit::kShare, std::nullopt, share(wall.checkpoints_s)).cause =
      checkpoints == 0
          ? ""
          : std::to_string(checkpoints) + " x " + format_seconds(wall.checkpoints_s / static_cast<double>(checkpoints));
  add(rows, "lost.evaluations", RowUnit::kShare, std::nullopt, share(wall.evaluations_s));
  add(rows, "lost.restarts", RowUnit::kShare, std::nullopt, share(wall.repeated_s + wall.down_s)).cause =
      wall.restarts == 0 ? ""
                         : "restarts: " + std::to_string(wall.restarts) +
                               ", steps done again: " + std::to_string(wall.repeated_steps) + " (" +
                               format_seconds(wall.repeated_s) + "), down for " + format_seconds(wall.down_s);
  add(rows, "lost.start_up", RowUnit::kShare, std::nullopt, share(wall.start_up_s)).cause =
      format_seconds(wall.start_up_s) + " before the first step";
  add(rows, "lost.other", RowUnit::kShare, std::nullopt, share(wall.other_s)).cause =
      wall.other_s > 0 ? "between steps: data, logging, recording" : "";
}

void add_loss(Rows& rows, const PlannedRun& run) {
  const RecordedSession& session = run.record.ranks[0].sessions.back();
  const StepRecord &first = session.steps.front(), &last = session.steps.back();
  add(rows, "loss.first", RowUnit::kNumber, std::nullopt, first.loss).cause = "step " + std::to_string(first.step);
  add(rows, "loss.last", RowUnit::kNumber, std::nullopt, last.loss).cause = "step " + std::to_string(last.step);
  std::vector<double> norms;
  int64_t skipped = 0;
  for (const StepRecord& step : session.steps) {
    if (std::isfinite(step.grad_norm)) norms.push_back(step.grad_norm);
    skipped += !step.updated;
  }
  if (!norms.empty()) {
    add(rows, "grad_norm.median", RowUnit::kNumber, std::nullopt, median(norms));
    add(rows, "grad_norm.largest", RowUnit::kNumber, std::nullopt, *std::max_element(norms.begin(), norms.end()));
  }
  std::vector<std::string> events;
  for (const EventRecord& event : session.events)
    events.push_back("step " + std::to_string(event.step) + ": " + event.text);
  add(rows, "steps_without_update", RowUnit::kCount, std::nullopt, static_cast<double>(skipped)).cause =
      join(events, "; ");
}

}  // namespace

Rows acceptance_rows(const PlannedRun& run, const MeasuredTime& time, const PlannedRun* baseline,
                     const MeasuredTime* baseline_time) {
  Rows rows;
  add_throughput(rows, run, time);
  if (baseline) add_scaling(rows, run, time, *baseline, *baseline_time);
  add_communication(rows, run, time);
  add_goodput(rows, run);
  add_loss(rows, run);
  return rows;
}

}  // namespace fivefold
