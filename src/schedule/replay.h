// Replay: when each action of a schedule runs, given how long computations and transfers take. The planner's first
// estimate of a pipeline, and the judge of every closed form in docs/schedules.md. Not the replay of a Program, which
// knows units, gathers and reductions. Pure functions, thread-safe.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace fivefold {

// Durations of one microbatch in one virtual stage, in seconds (any unit does: results are in the same one).
struct StageTimes {
  double forward_s = 1;
  double backward_input_s = 1;
  double backward_weight_s = 1;
  double overlapped_s = 3;  // FB whose forward is of this virtual stage

  double backward_s() const { return backward_input_s + backward_weight_s; }
};

struct ActionTime {
  double start_s = 0, end_s = 0;
};

struct RankTime {
  double first_s = 0, last_s = 0;  // start of its first computation, end of its last
  double busy_s = 0;               // sum of its computations

  // Time without computation, within its own span.
  double idle_s() const { return last_s - first_s - busy_s; }
};

struct Replay {
  std::vector<std::vector<ActionTime>> actions;  // as Schedule::ranks
  std::vector<RankTime> ranks;
  double makespan_s = 0;

  // Time of the step in which `rank` does not compute.
  double bubble_s(int rank) const { return makespan_s - ranks[static_cast<size_t>(rank)].busy_s; }
};

// A computation starts when the one before it on its rank has ended and its inputs are there. A transfer is issued when
// the computation before it in the list has ended, and holds up only the transfers behind it. It starts when both ends
// have issued it and all transfers before it on both ranks are complete, takes `transfer_s`, and is complete when all
// that it is joined with are.
// `times` is per virtual stage. REQUIRES: a checked schedule; p v times.
Replay replay(const Schedule& schedule, const std::vector<StageTimes>& times, double transfer_s);
// The same times for all virtual stages.
Replay replay(const Schedule& schedule, const StageTimes& times, double transfer_s);

// Replay of a schedule whose transfers are still to be added: inputs are there `transfer_s` after their producer has
// ended, at once on its own rank; a transfer holds up nothing. Errors: computations that wait for each other in a
// circle. REQUIRES: check_computations has been passed.
Result<Replay> replay_computations(const Schedule& schedule, const std::vector<StageTimes>& times,
                                   double transfer_s = 0);

// What a rank holds from `time_s` on. An activation is held from the start of F to the end of B or BW, a weight
// gradient's input from then to the end of W.
struct LivePoint {
  double time_s = 0;
  int activations = 0, weight_inputs = 0;
};
std::vector<LivePoint> live_over_time(const Schedule& schedule, const Replay& replay, int rank);

}  // namespace fivefold
