// The part of check_schedule that looks at several ranks.
#pragma once

#include "schedule/schedule.h"

namespace fivefold {

// Messages between two ranks are sent in the order in which they are received, and when every transfer holds up its
// rank until its other end is there, all lists come to their end.
// REQUIRES: every message is sent once and received once (check_schedule has looked at each rank).
Status check_transfers(const Schedule& schedule);

}  // namespace fivefold
