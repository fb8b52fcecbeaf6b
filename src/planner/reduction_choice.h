// ReductionChoice: when to reduce gradients that accumulate under ZeRO-3. Each microbatch's at once keeps a shard and
// sends (m - 1) more reductions; all of them once a step keeps a whole buffer, 4 N (1 - 1/D) bytes more in fp32.
// docs/communication.md. Pure functions, thread-safe.
#pragma once

#include <optional>

#include "planner/search.h"

namespace fivefold {

struct ReductionPrice {
  int64_t peak = 0;  // of the fullest rank, with what is outside the tensors
  bool fits = false;
  double seconds = 0;  // of a step
};

struct ReductionChoice {
  ReductionPrice each_microbatch, once;
  // kStep where it fits and is faster by more than kEqualSpeed tells apart: memory is what the other one saves.
  ReduceWhen chosen = ReduceWhen::kMicrobatch;
};

// Nothing: below ZeRO-3, or with one microbatch a step, there is no choice. REQUIRES: planner_scope() finds nothing.
std::optional<ReductionChoice> reduction_choice(const ModelSpec& model, const Inventory& inventory,
                                                const ResolvedConfig& config, const HardwareSpec& hardware);

// That the other one would be chosen, with what it costs and gives. Nothing: the configuration has the chosen one.
std::optional<Error> reduction_note(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                                    const HardwareSpec& hardware);

}  // namespace fivefold
