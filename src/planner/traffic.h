// Traffic: predicted collectives of one step on one rank, by kind, group and purpose. Formulas: docs/communication.md.
// Pure functions, thread-safe.
#pragma once

#include <vector>

#include "schedule/run_program.h"

namespace fivefold {

struct TrafficLine {
  CollectiveKind kind;
  GroupKind group;
  Purpose purpose;
  int64_t calls = 0;
  int64_t bytes = 0;  // sent by this rank
  bool operator==(const TrafficLine&) const = default;
};

// Sorted by kind, group, purpose. Ranks differ only in the partial gradients that lie in their shards.
std::vector<TrafficLine> predict_traffic(const ModelSpec& model, const Inventory& inventory,
                                         const ResolvedConfig& config, int rank = 0);

}  // namespace fivefold
