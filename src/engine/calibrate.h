// Times this machine with the engine's own operations: see calibrate_request.h for what a request can contain.
#pragma once

#include "engine/calibrate_request.h"

namespace fivefold {

// REQUIRES: ranks x threads <= cores; every step's configuration has one rank and `threads` threads.
// Throws what fails while ranks run.
Measurements run_measurements(const MeasureRequest& request);

}  // namespace fivefold
