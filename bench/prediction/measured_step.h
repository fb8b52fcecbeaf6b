// MeasuredStep: what a step of a case takes on this machine. Before and after each attempt a reference product is
// timed; when it moved by 5 % or other processes took the processor, the case is measured again, three times at most,
// and is "disturbed" if it never was quiet.
#pragma once

#include <vector>

#include "engine/engine_api.h"

namespace fivefold::bench {

struct MeasuredStep {
  double seconds = 0;  // the fastest of the steps, as rank 0 saw it
  bool disturbed = true;
  std::vector<RecordedCall> calls;  // of rank 0 in that step, if asked for
};

// Of `request`, whose updates are the steps that count.
MeasuredStep measure_step(EngineApi& engine, const ProbeRequest& request);

}  // namespace fivefold::bench
