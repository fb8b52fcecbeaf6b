// Bounds: parts of a rank's memory in closed form, without a replay: what the search prunes by and the five steps show.
// docs/memory.md derives them. Pure functions, thread-safe.
#pragma once

#include "schedule/run_program.h"
#include "spec/model.h"

namespace fivefold {

// Of the persistent buffers of a rank but its data.
int64_t state_bytes(const Inventory& inventory, const ResolvedConfig& config);
// Between forward and backward of a microbatch: the saved tensors of all layers, or what recompute keeps of them.
int64_t saved_activation_bytes(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config);
// What one layer needs whatever is sharded: its gathered weights and gradient, and its activations for one sequence;
// with tensor and context parallelism the rank's part of them.
int64_t one_layer_bytes(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config);

}  // namespace fivefold
