// Internal to src/planner/profiles: what one layer, the embedding and the output matrix take on a rank of a framework's
// run, forward and backward, with the collectives inside. What is counted, per operation: docs/profiles.md#time.
// Pure functions, thread-safe.
#pragma once

#include <vector>

#include "planner/profiles/rank_groups.h"
#include "planner/rates.h"

namespace fivefold {

// Seconds of a pass over one microbatch.
struct PassTime {
  double compute = 0;
  double tensor = 0, context = 0, experts = 0;  // waiting for collectives of tp, of cp, of ep and etp

  double total() const { return compute + tensor + context + experts; }
  PassTime& operator+=(const PassTime& other);
  PassTime operator*(double factor) const;
};

struct LayerTime {
  PassTime forward, backward;
  PassTime again;  // what backward computes again, by run.checkpointing
};

// Of every layer in model order, and of the ends. `head`: final norm, output matrix and loss, both passes.
struct ModelTimes {
  std::vector<LayerTime> layers;
  LayerTime embedding, head;
  // Of the layers before each one, and of all: forward, and backward with what is computed again.
  std::vector<double> forward_before, backward_before;
};

// What a framework does otherwise than the device's rates say (framework_time.h); seconds of a layer's forward pass
// that its host takes at least, how many times that backward takes, and shares of collectives that go on beside
// computation.
struct LayerPace {
  double loss_passes = 1;
  double dequantised_bytes = 0;
  double host_s = 0, backward_host = 2;
  double hidden_tensor = 0, hidden_experts = 0;
};

// REQUIRES: framework_refusals() finds nothing.
ModelTimes model_times(const FrameworkRun& run, const Rates& rates, const NetworkSpec& network, const LayerPace& pace);

}  // namespace fivefold
