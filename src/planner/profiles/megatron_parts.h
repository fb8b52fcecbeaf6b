// Internal to src/planner/profiles: which layers a stage of a Megatron-LM pipeline has, how many microbatches of them
// are in flight, and what a layer keeps for its backward pass. Plain data, pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/profiles/framework_run.h"

namespace fivefold {

// Layers [first, first + count) that a stage runs in a row; a stage has v of them.
struct MegatronChunk {
  int64_t first = 0, count = 0;
  double in_flight = 1;  // microbatches at the moment of the peak: after the last forward pass of the warm-up
};
std::vector<MegatronChunk> megatron_chunks(const FrameworkRun& run, int64_t stage);

// Bytes a token of the rank's micro-batch: kept of a layer, and there when its backward begins.
double megatron_layer_bytes(const FrameworkRun& run, const LayerSpec& layer);
double megatron_gradient_bytes(const FrameworkRun& run, const LayerSpec& layer);
// Scores and probabilities of unfused attention, with dropout a mask: kept, or made again by a recompute.
double megatron_scores_bytes(const FrameworkRun& run, const MixerSpec& mixer);

// Ranks that divide the sequence of what sequence parallelism covers.
int64_t sequence_parts(const FrameworkRun& run);

}  // namespace fivefold
