// Which units each virtual stage of a pipeline holds: embedding, layers and head in order, cut into contiguous parts.
// Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/model.h"
#include "spec/run_config.h"

namespace fivefold {

// Where the schedule of this configuration puts the chunks.
Placement placement_of(const ParallelConfig& parallel);
int virtual_stage(Placement placement, int num_ranks, int rank, int chunk);

// The fewest microbatches from `at_least` on that the schedule takes: interleaved takes multiples of pp, dualpipev at
// least 2 pp, a file its own number whatever is asked for.
int64_t least_microbatches(const ParallelConfig& parallel, int64_t at_least);

// Units [first, last) of the whole inventory; a stage may be empty.
struct StageUnits {
  int first = 0, last = 0;

  bool empty() const { return first == last; }
  bool contains(int unit) const { return first <= unit && unit < last; }
  bool operator==(const StageUnits&) const = default;
};

// Stages that hold `layers_per_stage[i]` layers each; the first also the embedding, the last also the head.
std::vector<StageUnits> stage_units(const std::vector<int64_t>& layers_per_stage);

// Floating-point operations of each virtual stage per token, forward and backward at `sequence` tokens: 6 for each
// element of a matrix that multiplies it and 6 a d s of attention; the last one also the logits.
std::vector<double> stage_flops(const ModelSpec& model, const std::vector<int64_t>& layers_per_stage, int64_t sequence);

// Layers per virtual stage such that the slowest rank, with all its chunks, is as quick as a cut between layers allows
// (stage_flops); of equal ones the cut whose slowest virtual stage is quickest, then the one with the most even rest,
// then the one with fewer layers at the start, where most microbatches are in flight, and more right behind it: as the
// last stage's neighbour the longest stage would hold up both ends of a step.
// With one chunk a rank the best of all cuts; with several the best one that moving single layers from it leads to.
// Stages may be empty.
std::vector<int64_t> balanced_layers(const ModelSpec& model, const ParallelConfig& parallel, int64_t sequence);

// Layers per virtual stage as `parallel.stages` says. REQUIRES: check_pipeline() has nothing to say about it.
std::vector<int64_t> layers_per_stage(const ModelSpec& model, const ParallelConfig& parallel, int64_t sequence);

}  // namespace fivefold
