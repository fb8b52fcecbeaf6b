// The rows of each section; not for callers of reconcile().
#pragma once

#include "reconcile/measured_run.h"
#include "reconcile/reconcile.h"

namespace fivefold {

// Differences of times below this are rounding of the record.
inline constexpr double kClockResolution_s = 1e-6;

// The instructions of the step, planned and recorded.
std::vector<ReconcileRow> program_rows(const PlannedRun& run);
// Peaks per account and rank, of the sum, and of the process.
std::vector<ReconcileRow> memory_rows(const PlannedRun& run);
// Calls and bytes per kind, group, purpose and rank.
std::vector<ReconcileRow> traffic_rows(const PlannedRun& run);
// Parts of a step and the whole. `baseline_time` belongs to `baseline`.
std::vector<ReconcileRow> time_rows(const PlannedRun& run, const MeasuredTime& time, const PlannedRun* baseline,
                                    const MeasuredTime* baseline_time);
// Collectives by group and purpose, and how much of them is hidden behind computation.
std::vector<ReconcileRow> communication_rows(const PlannedRun& run);
// Of a pipeline: its step replayed with recorded durations, and how long ranks waited. No rows without a pipeline, or
// where the record has no times or is of another program than the plan.
std::vector<ReconcileRow> pipeline_rows(const PlannedRun& run, const MeasuredTime& time);
// Throughput, utilisation, scaling, goodput, loss.
std::vector<ReconcileRow> acceptance_rows(const PlannedRun& run, const MeasuredTime& time, const PlannedRun* baseline,
                                          const MeasuredTime* baseline_time);

// "+12.0 MiB", "-3.1 ms": signed, in the row's unit.
std::string format_value(double value, RowUnit unit);
std::string format_difference(double value, RowUnit unit);
// 0.123 -> "12.3 %".
std::string percent(double share);

}  // namespace fivefold
