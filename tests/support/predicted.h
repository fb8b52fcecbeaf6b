// Predicted = counted: a rank's peak bytes per account and its collectives call by call, for tests. Torch-free.
#pragma once

#include "engine/engine_api.h"
#include "spec/inventory.h"

namespace fivefold::testing {

// Expects that on every rank of a probe with a measured step the planner's peak of each account is what the allocator
// counted, workspace, which is only below its bound, and other excepted, and its traffic what the communicator did.
void expect_predicted(const ModelSpec& model, const Inventory& inventory, const ProbeRequest& request,
                      const ProbeResult& result);

}  // namespace fivefold::testing
