// Collectives of tensor and context parallelism inside a unit's passes (Note [Tensor parallelism] in spec/operations.h,
// Note [Exchanges] in engine/layers/context_parallel.h): what the tape is for memory, this is for the wire. Formulas:
// docs/communication.md. Pure functions, thread-safe.
#pragma once

#include <vector>

#include "spec/hardware.h"
#include "spec/operations.h"

namespace fivefold {

struct LayerCall {
  CollectiveKind kind;
  Purpose purpose;
  GroupKind group = GroupKind::kTp;
  int64_t elements = 0;  // of the whole tensor, which every rank has before or after; of what is sent or received
  int64_t element_bytes = 0;
  int operation = -1;          // whose pass it belongs to; -1: none that could hide it
  double beside = 0;           // share of that operation's computation that goes on meanwhile
  bool joined = false;         // one batch with the call before it
  Pass pass = Pass::kForward;  // of `operation`: what a backward rebuilds runs forward

  // Sent by one of `ranks`.
  int64_t bytes_sent(int64_t ranks) const;
};

// In order of issue, with those of what selective recompute runs again. Empty without tensor and context parallelism.
// Takes what tape() takes.
std::vector<LayerCall> layer_calls(const UnitOperations& operations, TapeStep step, const TapeShape& shape,
                                   const TapeOptions& options = {});

}  // namespace fivefold
