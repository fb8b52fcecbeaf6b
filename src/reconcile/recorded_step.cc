#include "reconcile/recorded_step.h"

#include <algorithm>
#include <compare>
#include <map>

#include "reconcile/measured_run.h"

namespace fivefold {
namespace {

using UnitField = double UnitSeconds::*;

// What an instruction of one unit computes; nothing for those that wait, send or only keep the books.
UnitField field_of(const Instruction& instruction) {
  switch (instruction.op) {
    case Opcode::kForward:
      return &UnitSeconds::forward;
    case Opcode::kRecompute:
      return instruction.output_unused ? &UnitSeconds::recompute_unused : &UnitSeconds::recompute;
    case Opcode::kLoss:
      return &UnitSeconds::head;
    case Opcode::kBackward:
      return &UnitSeconds::backward;
    case Opcode::kBackwardInput:
      return &UnitSeconds::backward_input;
    case Opcode::kBackwardWeight:
      return &UnitSeconds::backward_weight;
    case Opcode::kAccumulateGrads:
      return &UnitSeconds::accumulate;
    case Opcode::kOptimizerStep:
      return &UnitSeconds::optimizer;
    default:
      return nullptr;
  }
}

// CPU seconds of one pipeline rank's instructions, pooled.
class Samples {
 public:
  void add(const Program& program, const StepRecord& step) {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      const double seconds = step.times[i].cpu_s;
      if (instruction.op == Opcode::kGradNorm) norm_.push_back(seconds);
      const UnitField field = field_of(instruction);
      if (field == nullptr) continue;
      Pool& pool = pools_[{instruction.unit, instruction.op, instruction.output_unused}];
      pool.field = field;
      pool.seconds.push_back(seconds);
    }
  }
  bool empty() const { return norm_.empty(); }
  // In place of what `times` says of computing.
  void write(StepTimes& times) const {
    std::vector<int> updated;
    for (const auto& [key, pool] : pools_) {
      times.units[static_cast<size_t>(key.unit)].*pool.field = median(pool.seconds);
      if (key.op == Opcode::kOptimizerStep) updated.push_back(key.unit);
    }
    // The norm is one instruction over all units that the rank updates.
    for (const int unit : updated)
      times.units[static_cast<size_t>(unit)].sum_of_squares = median(norm_) / static_cast<double>(updated.size());
  }

 private:
  struct Key {
    int unit;
    Opcode op;
    bool output_unused;
    auto operator<=>(const Key&) const = default;
  };
  struct Pool {
    UnitField field = nullptr;
    std::vector<double> seconds;
  };

  std::map<Key, Pool> pools_;
  std::vector<double> norm_;
};

// Links as planned, no computing.
StepTimes planned_links(const RunPlan& plan) {
  StepTimes times = no_step_times(plan.inventory.num_units(), plan.config.degrees.pp);
  if (!plan.time) return times;
  times = plan.time->times;
  times.overlap_share = 0;
  for (UnitSeconds& unit : times.units)
    for (const UnitField field : std::initializer_list<UnitField>{
             &UnitSeconds::forward, &UnitSeconds::recompute, &UnitSeconds::recompute_unused, &UnitSeconds::head,
             &UnitSeconds::backward, &UnitSeconds::backward_input, &UnitSeconds::backward_weight,
             &UnitSeconds::optimizer, &UnitSeconds::accumulate, &UnitSeconds::sum_of_squares})
      unit.*field = 0;
  return times;
}

}  // namespace

bool recorded_as_planned(const PlannedRun& run) {
  const auto same = [&](const Instruction& a, const RecordedInstruction& b) {
    return as_recorded(a, run.plan.inventory) == b;
  };
  return std::all_of(run.record.ranks.begin(), run.record.ranks.end(), [&](const RankRecord& rank) {
    const std::vector<Instruction>& planned = run.plan.program_of(rank.rank).instructions;
    const std::vector<RecordedInstruction>& recorded = rank.sessions.back().program;
    return std::equal(planned.begin(), planned.end(), recorded.begin(), recorded.end(), same);
  });
}

std::optional<std::vector<StepTimes>> recorded_times(const PlannedRun& run) {
  if (!recorded_as_planned(run)) return std::nullopt;
  std::vector<Samples> samples(static_cast<size_t>(run.plan.config.degrees.pp));
  for (const RankRecord& rank : run.record.ranks) {
    const std::vector<StepRecord>& steps = rank.sessions.back().steps;
    for (size_t i = first_steady_step(steps.size()); i < steps.size(); ++i)
      if (!steps[i].times.empty())
        samples[static_cast<size_t>(run.plan.pipeline_rank(rank.rank))].add(run.plan.program_of(rank.rank), steps[i]);
  }
  std::vector<StepTimes> times;
  for (const Samples& of_rank : samples) {
    if (of_rank.empty()) return std::nullopt;
    of_rank.write(times.emplace_back(planned_links(run.plan)));
  }
  return times;
}

std::optional<StepReplay> replay_recorded(const PlannedRun& run) {
  const auto times = recorded_times(run);
  if (!times) return std::nullopt;
  return replay_step(run.plan.pipeline_programs(), *times);
}

}  // namespace fivefold
