// Communication buffers of context parallelism within an attention, as tape events (Note [Exchanges] in
// engine/layers/context_parallel.h). Pure functions, thread-safe.
#pragma once

#include <vector>

#include "spec/operations.h"

namespace fivefold {

// Every buffer is allocated and freed. Empty without context parallelism.
std::vector<TapeEvent> forward_exchanges(const UnitOperations& operations, const Operation& attention,
                                         const TapeShape& shape, RebuildPart part = RebuildPart::kWhole);
std::vector<TapeEvent> backward_exchanges(const UnitOperations& operations, const Operation& attention,
                                          const TapeShape& shape);

}  // namespace fivefold
