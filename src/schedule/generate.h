// The pipeline schedules that fivefold knows, generated for p ranks, v chunks per rank and m microbatches. Pictures,
// bubbles, memory and sources: docs/schedules.md. Pure functions, thread-safe.
#pragma once

#include "schedule/schedule.h"
#include "spec/run_config.h"

namespace fivefold {

// A checked schedule with its transfers. Its domain, for p >= 1 and m >= 1:
//   naive, gpipe, 1f1b, zb1p, zb2p   v = 1
//   interleaved                      v >= 2, m a multiple of p
//   zbv, v-half, v-min               v = 2
//   dualpipev                        v = 2, m >= 2 p
// Errors: outside the domain, with the nearest setting inside.
Result<Schedule> generate(ScheduleKind kind, int p, int v, int m);
// The same without its transfers.
Result<Schedule> generate_computations(ScheduleKind kind, int p, int v, int m);

}  // namespace fivefold
