#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "reconcile/recorded_step.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

constexpr double kNotableBubble = 0.01;  // of the step: what is less is not named as a cause
constexpr double kOnCore = 0.9;          // CPU time / wall time below which a computing thread was kept waiting

constexpr StepPart kComputing[] = {StepPart::kForward, StepPart::kRecompute, StepPart::kHead, StepPart::kBackward,
                                   StepPart::kOptimizer};

ReconcileRow row(std::string quantity, int rank, RowUnit unit, std::optional<double> predicted, double measured) {
  ReconcileRow made;
  made.section = RowSection::kPipeline;
  made.quantity = std::move(quantity);
  made.rank = rank;
  made.unit = unit;
  made.predicted = predicted;
  made.measured = measured;
  return made;
}

double longest(const StepReplay& replay) {
  double most = 0;
  for (const StepCost& cost : replay.ranks) most = std::max(most, cost.busy_s());
  return most;
}

double mean(const StepReplay& replay) {
  double sum = 0;
  for (const StepCost& cost : replay.ranks) sum += cost.busy_s();
  return sum / static_cast<double>(replay.ranks.size());
}

// A rank that computes longer than the others keeps them waiting under any schedule.
std::string bubble_cause(const StepReplay& recorded, const StepReplay& planned) {
  if (std::abs(recorded.bubble() - planned.bubble()) < kNotableBubble) return "";
  return "the rank that computes longest takes " + percent(longest(recorded) / mean(recorded) - 1) +
         " more than their mean, planned " + percent(longest(planned) / mean(planned) - 1);
}

// Waiting for transfers and where all ranks meet, as a share of the step.
double waited(const MeasuredTime& time, size_t rank) {
  double seconds = 0;
  for (const StepPart part : {StepPart::kPipeline, StepPart::kGradients})
    seconds += time.parts[rank][part] - time.cpu[rank][part];
  return std::max(0.0, seconds) / time.step_s;
}

std::string waiting_cause(const MeasuredTime& time) {
  double cpu = 0, wall = 0;
  for (size_t rank = 0; rank < time.parts.size(); ++rank)
    for (const StepPart part : kComputing) cpu += time.cpu[rank][part], wall += time.parts[rank][part];
  if (cpu >= kOnCore * wall) return "";
  return "computing threads had a core for " + percent(cpu / wall) +
         " of their time: a rank without a core keeps those behind it waiting, which is no bubble";
}

}  // namespace

std::vector<ReconcileRow> pipeline_rows(const PlannedRun& run, const MeasuredTime& time) {
  std::vector<ReconcileRow> rows;
  if (run.plan.config.degrees.pp == 1 || time.parts.empty()) return rows;
  const std::optional<StepReplay> recorded = replay_recorded(run);
  if (!recorded) return rows;
  const StepReplay* planned = run.plan.time ? &run.plan.time->replay : nullptr;
  const auto predicted = [&](auto figure) { return planned ? std::optional<double>(figure(*planned)) : std::nullopt; };
  rows.push_back(row("pipeline.bubble_replayed", kAllRanks, RowUnit::kShare,
                     predicted([](const StepReplay& replay) { return replay.bubble(); }), recorded->bubble()));
  if (planned) rows.back().cause = bubble_cause(*recorded, *planned);
  for (const RankRecord& rank : run.record.ranks) {
    const int stage = run.plan.pipeline_rank(rank.rank);
    rows.push_back(row("pipeline.bubble_replayed", rank.rank, RowUnit::kShare,
                       predicted([&](const StepReplay& replay) { return replay.bubble(stage); }),
                       recorded->bubble(stage)));
  }
  rows.push_back(row("pipeline.step_replayed", kAllRanks, RowUnit::kSeconds,
                     predicted([](const StepReplay& replay) { return replay.makespan_s; }), recorded->makespan_s));
  for (const RankRecord& rank : run.record.ranks) {
    const int stage = run.plan.pipeline_rank(rank.rank);
    const auto waits = [&](const StepReplay& replay) {
      return replay.bubble(stage) + replay.exposed_communication(stage);
    };
    rows.push_back(row("pipeline.waiting", rank.rank, RowUnit::kShare, predicted(waits),
                       waited(time, static_cast<size_t>(rank.rank))));
    if (rank.rank == 0) rows.back().cause = waiting_cause(time);
  }
  return rows;
}

}  // namespace fivefold
