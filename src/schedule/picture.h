// A schedule as text: one line per rank, time from left to right. Pure function, thread-safe.
#pragma once

#include <string>

#include "schedule/replay.h"
#include "schedule/schedule.h"

namespace fivefold {

// "F3" is the forward of microbatch 3, "BW3" its backward, "B3" and "W3" the halves, "F5&BW3" both at once; dashes last
// as long as the computation does, dots are waiting. The second chunk of a rank is in small letters ("f3"); of three or
// more chunks each has its number ("F1.3"). Labels longer than their computation are cut.
// REQUIRES: seconds_per_column > 0.
std::string draw_schedule(const Schedule& schedule, const Replay& replay, double seconds_per_column);

}  // namespace fivefold
