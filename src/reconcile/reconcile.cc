#include "reconcile/reconcile.h"

#include <algorithm>

#include "base/text.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

std::string instruction_text(const RecordedInstruction& instruction) {
  std::string text = instruction.op;
  if (!instruction.unit.empty()) text += " " + instruction.unit;
  if (instruction.microbatch >= 0) text += " #" + std::to_string(instruction.microbatch);
  return text;
}

std::string program_cause(const std::vector<RecordedInstruction>& planned,
                          const std::vector<RecordedInstruction>& recorded) {
  for (size_t i = 0; i < std::max(planned.size(), recorded.size()); ++i) {
    const std::string left = i < planned.size() ? instruction_text(planned[i]) : "its end";
    const std::string right = i < recorded.size() ? instruction_text(recorded[i]) : "its end";
    if (left != right) return "instruction " + std::to_string(i) + ": planned " + left + ", recorded " + right;
  }
  return "";
}

std::vector<std::string> notes_of(const PlannedRun& run, const MeasuredTime& time) {
  std::vector<std::string> notes;
  const bool cut =
      std::any_of(run.record.ranks.begin(), run.record.ranks.end(), [](const RankRecord& r) { return r.cut; });
  if (cut) notes.push_back("the record ends within a line: the run was killed; that line is left out");
  if (!run.plan.time) notes.push_back("no hardware is known: times and utilisation are not predicted");
  if (run.plan.time && !run.plan.time->calibrated)
    notes.push_back(
        "times are predicted from published or assumed rates and not held to a bound; `fivefold calibrate` "
        "measures this machine");
  if (time.parts.empty()) notes.push_back("the record has no times of instructions: the parts of a step are not known");
  if (time.num_steps < 3)
    notes.push_back("times are of " + std::to_string(time.num_steps) + " step(s): too few to trust");
  return notes;
}

}  // namespace

std::vector<ReconcileRow> program_rows(const PlannedRun& run) {
  std::vector<ReconcileRow> rows;
  for (const RankRecord& rank : run.record.ranks) {
    std::vector<RecordedInstruction> planned;
    for (const Instruction& instruction : run.plan.program_of(rank.rank).instructions)
      planned.push_back(as_recorded(instruction, run.plan.inventory));
    const std::vector<RecordedInstruction>& recorded = rank.sessions.back().program;
    const auto [left, right] = std::mismatch(planned.begin(), planned.end(), recorded.begin(), recorded.end());
    ReconcileRow row;
    row.section = RowSection::kProgram;
    row.quantity = "program.instructions_as_planned";
    row.rank = rank.rank;
    row.unit = RowUnit::kCount;
    row.predicted = static_cast<double>(planned.size());
    // Equal ones from the start; those beyond the plan's end count too.
    row.measured = static_cast<double>(left == planned.end() ? recorded.size() : left - planned.begin());
    row.bound = 0;
    row.cause = program_cause(planned, recorded);
    rows.push_back(std::move(row));
  }
  return rows;
}

bool Reconciliation::pass() const {
  return std::all_of(rows.begin(), rows.end(), [](const ReconcileRow& row) { return row.pass(); });
}

Result<Reconciliation> reconcile(const PlannedRun& run, const PlannedRun* baseline) {
  const int world = run.plan.config.degrees.world();
  if (world != static_cast<int>(run.record.ranks.size()))
    return Error{
        "run record",
        "has " + std::to_string(run.record.ranks.size()) + " ranks, the configuration " + std::to_string(world), ""};
  FIVEFOLD_ASSIGN(const MeasuredTime time, measure_time(run.record));
  std::optional<MeasuredTime> baseline_time;
  if (baseline) {
    FIVEFOLD_ASSIGN(MeasuredTime measured, measure_time(baseline->record));
    baseline_time = std::move(measured);
  }
  const MeasuredTime* other = baseline_time ? &*baseline_time : nullptr;
  Reconciliation result;
  const auto append = [&](std::vector<ReconcileRow> rows) {
    result.rows.insert(result.rows.end(), std::make_move_iterator(rows.begin()), std::make_move_iterator(rows.end()));
  };
  append(program_rows(run));
  append(memory_rows(run));
  append(traffic_rows(run));
  append(time_rows(run, time, baseline, other));
  append(communication_rows(run));
  append(pipeline_rows(run, time));
  append(acceptance_rows(run, time, baseline, other));
  result.notes = notes_of(run, time);
  return result;
}

}  // namespace fivefold
