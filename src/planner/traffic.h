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

// Sorted by kind, group, purpose. Every rank of a data-parallel run has the same.
std::vector<TrafficLine> predict_traffic(const Inventory& inventory, const ResolvedConfig& config);

}  // namespace fivefold
