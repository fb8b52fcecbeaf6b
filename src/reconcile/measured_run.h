// MeasuredRun: the figures of a run record that a plan can be held against: peaks, times of steady steps, where the
// wall time went. Pure functions over a RunRecord, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "reconcile/step_part.h"
#include "record/run_record.h"

namespace fivefold {

// Index of the first step of a session that counts for time: the first makes the libraries' kernels and touches memory
// for the first time, the second may still do so for what only follows an optimizer step.
size_t first_steady_step(size_t num_steps);

// Index into the last sessions' steps: of the steady ones whose instructions every rank timed, the median by the
// slowest rank's seconds (of an even number the quicker). Nothing when there is none.
std::optional<size_t> median_steady_step(const RunRecord& record);

double median(std::vector<double> values);

// Times of steady steps of the last session.
struct MeasuredTime {
  int64_t num_steps = 0;             // of the median
  double step_s = 0, fastest_s = 0;  // the slowest rank's step: median, minimum
  double first_s = 0;                // of the session's first step
  std::vector<PartSeconds> parts;    // per rank: median; empty when no step has times
  std::vector<PartSeconds> cpu;      // of the calling thread
  PartSeconds first_parts;           // rank 0's first step, when it has times
  bool first_has_times = false;
};
// Errors: no step at all, an instruction that no opcode has.
Result<MeasuredTime> measure_time(const RunRecord& record);

// Where the wall time of all sessions went, as rank 0 saw it.
struct WallTime {
  double total_s = 0;  // first start to last line
  double steps_s = 0;  // steps that count
  double checkpoints_s = 0, evaluations_s = 0;
  double start_up_s = 0;  // of sessions: before their first step
  double repeated_s = 0;  // steps done again after a restart
  double down_s = 0;      // between sessions
  double other_s = 0;     // the rest: data, logging
  int64_t restarts = 0, repeated_steps = 0;
};
WallTime measure_wall_time(const RankRecord& rank);

// A step's memory with what happened just before it.
struct PeakMoment {
  int64_t bytes = 0;
  int64_t step = 0;          // of the first occurrence
  int64_t num_steps_at = 0;  // steps with the same peak
  int64_t num_steps = 0;
};
// Of an account over the last session; of the total.
PeakMoment peak_of(const RecordedSession& session, Account account);
PeakMoment peak_total_of(const RecordedSession& session);

// "the session's first step", "follows a checkpoint", "follows an evaluation"; empty for an ordinary step.
std::string circumstance(const RecordedSession& session, int64_t step);

}  // namespace fivefold
