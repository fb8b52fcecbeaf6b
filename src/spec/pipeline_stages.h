// Which units each virtual stage of a pipeline holds: embedding, layers and head in order, cut into contiguous parts.
// Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/model.h"
#include "spec/run_config.h"

namespace fivefold {

// Which virtual stage chunk c of rank r is, of p ranks.
enum class Placement : uint8_t {
  kLoop,  // c p + r: from the last rank round to the first
  kV,     // odd chunks run back from the last rank to the first: (c + 1) p - 1 - r
};
Placement placement_of(ScheduleKind kind);
int virtual_stage(Placement placement, int num_ranks, int rank, int chunk);

// Units [first, last) of the whole inventory; a stage may be empty.
struct StageUnits {
  int first = 0, last = 0;

  bool empty() const { return first == last; }
  bool contains(int unit) const { return first <= unit && unit < last; }
  bool operator==(const StageUnits&) const = default;
};

// Stages that hold `layers_per_stage[i]` layers each; the first also the embedding, the last also the head.
std::vector<StageUnits> stage_units(const std::vector<int64_t>& layers_per_stage);

// Layers per stage such that the slowest stage is as quick as a cut between layers allows, given that the last stage
// also computes the logits. Work is counted in floating-point operations of forward and backward at `sequence` tokens;
// of equal cuts the one with the most even rest. Stages may be empty when there are more than layers.
std::vector<int64_t> balanced_layers(const ModelSpec& model, int64_t num_stages, int64_t sequence);

}  // namespace fivefold
