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

// Bytes a token of the rank's micro-batch: kept of a layer, there when its backward begins, and what a module of
// multi-token prediction keeps beside its layer.
double megatron_layer_bytes(const FrameworkRun& run, const LayerSpec& layer);
double megatron_gradient_bytes(const FrameworkRun& run, const LayerSpec& layer);
// Probabilities of unfused attention, with dropout their mask and product: kept, or made again by a recompute.
double megatron_scores_bytes(const FrameworkRun& run, const MixerSpec& mixer);
double megatron_prediction_bytes(const FrameworkRun& run);

// Of an element that a linear keeps of its input: 2 in bf16, less with scales in 8 and 4 bits.
double megatron_input_bytes(const FrameworkRun& run);

// Ranks that divide the sequence of what sequence parallelism covers.
int64_t sequence_parts(const FrameworkRun& run);

}  // namespace fivefold
