// reconcile: the join of a plan and a record on equal keys. Each quantity that one side names becomes a row with both
// values, the difference, the bound that it must keep, and what the difference is, computed from the data. Bounds and
// quantities: docs/formats/run-record.md. Pure functions, thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "reconcile/row.h"
#include "reconcile/run_plan.h"
#include "record/run_record.h"

namespace fivefold {

struct PlannedRun {
  RunPlan plan;
  RunRecord record;
};

struct Reconciliation {
  std::vector<ReconcileRow> rows;  // by section
  std::vector<std::string> notes;  // what could not be compared, and why

  bool pass() const;
};

// `baseline`: a run that scaling efficiency refers to, nullptr for none.
// Errors: a record without steps, of another number of ranks than the plan, with unknown instructions.
Result<Reconciliation> reconcile(const PlannedRun& run, const PlannedRun* baseline = nullptr);

// Tables by section for a terminal; rows that are equal on several ranks are one line.
std::string to_text(const Reconciliation& reconciliation);
// {"pass", "rows": [{"quantity", "rank", "predicted", "measured", "difference", "bound", "pass", "cause"}], "notes"}.
// A quantity of all ranks has rank null, as has what is not predicted or not bounded.
nlohmann::ordered_json to_json(const Reconciliation& reconciliation);

}  // namespace fivefold
