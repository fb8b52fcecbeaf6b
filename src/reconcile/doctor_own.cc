// The checklists of a run of fivefold's own engine: its numbers are those of the plan and, where it has run, of the
// rows that reconcile() makes of its record.
#include <algorithm>
#include <string>

#include "base/text.h"
#include "reconcile/doctor_parts.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

constexpr double kNoticeable = 0.02;

void add(Diagnosis& diagnosis, const std::string& title, const std::string& finding, const std::string& advice = "",
         bool cause = false) {
  diagnosis.steps.push_back({title, finding, advice, cause});
}

std::string difference_text(const ReconcileRow& row) {
  std::string text = format_value(row.measured, row.unit);
  if (row.predicted)
    text += " where " + format_value(*row.predicted, row.unit) + " are planned (" +
            format_difference(*row.difference(), row.unit) + ")";
  return row.cause.empty() ? text : text + ": " + row.cause;
}

void check_peak(const RunPlan& plan, const RemedyList& remedies, Diagnosis& diagnosis) {
  const Ledger& ledger = plan.fullest_ledger();
  std::vector<std::pair<int64_t, std::string>> accounts;
  for (int i = 0; i < kNumAccounts; ++i) {
    const auto account = static_cast<Account>(i);
    if (ledger.at_peak[account] > 0) accounts.emplace_back(ledger.at_peak[account], std::string(to_string(account)));
  }
  std::ranges::sort(accounts, std::greater());
  std::vector<std::string> texts;
  for (const auto& [bytes, name] : accounts)
    if (texts.size() < 6) texts.push_back(name + " " + format_bytes(bytes));
  const bool fits = remedies.before.fits();
  add(diagnosis, "what the peak is made of",
      format_bytes(ledger.peak_total) + " planned on the fullest rank, at " + ledger.peak_moment + ": " +
          join(texts, ", "));
  add(diagnosis, "does the plan fit",
      std::string(fits ? "yes: " : "no: ") + format_bytes(remedies.before.peak) + " needed of " +
          format_bytes(remedies.before.capacity),
      fits ? "" : "the remedies below", !fits);
}

void check_record_memory(const Reconciliation& record, Diagnosis& diagnosis) {
  for (const ReconcileRow& row : record.rows)
    if (row.section == RowSection::kMemory && !row.pass())
      add(diagnosis, row.quantity + (row.rank == kAllRanks ? "" : " of rank " + std::to_string(row.rank)),
          difference_text(row), "", true);
}

void check_plan_pace(const RunPlan& plan, Diagnosis& diagnosis) {
  if (!plan.time) return;
  std::vector<std::string> parts;
  for (int i = 0; i < kNumStepParts; ++i) {
    const auto part = static_cast<StepPart>(i);
    const double share = plan.time->parts[part] / plan.time->step_s;
    if (share >= kNoticeable) parts.push_back(std::string(to_string(part)) + " " + percent(share));
  }
  add(diagnosis, "where the planned step goes", format_seconds(plan.time->step_s) + ": " + join(parts, ", "));
}

// Parts of the measured step, and the one that is farthest from the plan.
void check_record_pace(const Reconciliation& record, Diagnosis& diagnosis) {
  double step = 0;
  const ReconcileRow* farthest = nullptr;
  std::vector<std::string> parts;
  for (const ReconcileRow& row : record.rows)
    if (row.quantity == "time.step") step = row.measured;
  for (const ReconcileRow& row : record.rows) {
    if (row.section == RowSection::kTime && row.quantity.starts_with("time.") && row.quantity != "time.step" &&
        row.quantity != "time.step_fastest" && row.quantity != "time.first_step" &&
        row.quantity.find('.', 5) == std::string::npos) {
      if (step > 0 && row.measured / step >= kNoticeable)
        parts.push_back(row.quantity.substr(5) + " " + percent(row.measured / step));
      if (row.predicted && (farthest == nullptr || *row.difference() > *farthest->difference())) farthest = &row;
    }
    const bool lost = row.quantity.starts_with("lost.") && row.measured >= kNoticeable;
    if (lost || row.quantity == "goodput" || row.quantity == "mfu.causal" || row.quantity == "pipeline.waiting" ||
        row.quantity == "pipeline.bubble_replayed")
      add(diagnosis, row.quantity, difference_text(row), "", lost && row.measured >= 5 * kNoticeable);
  }
  if (!parts.empty()) add(diagnosis, "where the measured step goes", format_seconds(step) + ": " + join(parts, ", "));
  if (farthest != nullptr && *farthest->difference() > kNoticeable * step)
    add(diagnosis, "farthest from the plan: " + farthest->quantity.substr(5), difference_text(*farthest), "", true);
}

void check_scaling(const Reconciliation* record, Diagnosis& diagnosis) {
  if (record != nullptr)
    for (const ReconcileRow& row : record->rows)
      if (row.quantity == "scaling_efficiency") add(diagnosis, row.quantity, difference_text(row));
  if (diagnosis.steps.empty())
    add(diagnosis, "scaling efficiency", "there is nothing that it could refer to",
        "fivefold train CONFIG --scaling 1,2,4 measures it; fivefold reconcile runs/NAME --baseline runs/OTHER "
        "compares");
}

}  // namespace

Diagnosis diagnose_own(const RunPlan& plan, const Reconciliation* record, const RemedyList& remedies, Symptom symptom) {
  Diagnosis diagnosis{.symptom = symptom, .need = remedies.before.peak, .capacity = remedies.before.capacity};
  switch (symptom) {
    case Symptom::kOutOfMemory:
      check_peak(plan, remedies, diagnosis);
      if (record != nullptr) check_record_memory(*record, diagnosis);
      for (const Remedy& remedy : remedies.each)
        diagnosis.remedies.push_back({.name = std::string(to_string(remedy.kind)),
                                      .config = remedy.config,
                                      .settings = remedy.settings,
                                      .changes = "",
                                      .need = remedy.need.peak,
                                      .fits = remedy.need.fits(),
                                      .speed = remedy.need.tokens_per_s / remedies.before.tokens_per_s - 1});
      break;
    case Symptom::kSlow:
      check_plan_pace(plan, diagnosis);
      if (record != nullptr) check_record_pace(*record, diagnosis);
      break;
    case Symptom::kScaling:
      check_scaling(record, diagnosis);
      break;
  }
  std::ranges::stable_partition(diagnosis.steps, &DoctorStep::cause);
  std::vector<std::string> causes;
  for (const DoctorStep& step : diagnosis.steps)
    if (step.cause) causes.push_back(step.title);
  diagnosis.summary = std::string(to_string(symptom)) + ": " +
                      (causes.empty() ? std::string("nothing stands out") : join(causes, ", then "));
  if (record != nullptr) diagnosis.notes = record->notes;
  return diagnosis;
}

}  // namespace fivefold
