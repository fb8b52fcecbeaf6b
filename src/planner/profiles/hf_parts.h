// Internal to the hf profile: sizes of the model as transformers has it, what stays between steps, and what a layer
// keeps for each token. Derivations: docs/profiles/hf.md.
#pragma once

#include "planner/profiles/framework_run.h"

namespace fivefold {

// Parameters by what happens to them.
struct HfParameters {
  int64_t embeddings = 0;    // token table and output matrix; a tied one once
  int64_t head = 0;          // output matrix
  int64_t linear = 0;        // weights of the layers' linears
  int64_t vectors = 0;       // norms and biases
  int64_t layer_linear = 0;  // of the largest layer
  int64_t layer_vectors = 0;
  int64_t adapter = 0;  // trained beside a frozen model
  int64_t all() const { return embeddings + linear + vectors; }
};
HfParameters hf_parameters(const FrameworkRun& run);

// Bytes of one frozen weight: what FSDP cuts, and quantisation constants that every rank keeps.
struct FrozenBytes {
  double cut = 2, whole = 0;
};
FrozenBytes frozen_bytes(const FrameworkRun& run);

// Full fine-tuning of fp32 weights under autocast, where FSDP does not cast them: the residual stream is fp32.
bool trains_in_fp32(const FrameworkRun& run);

// Ranks that share a shard of weights, or of the optimizer's state.
int64_t hf_shards(const FrameworkRun& run);

// Input and output width of a module that adapters name; {0, 0} when the layer has none of that name.
struct Widths {
  int64_t in = 0, out = 0;
};
Widths target_widths(const ModelSpec& model, const LayerSpec& layer, const std::string& target);

// A layer's bytes for each token.
struct HfLayerBytes {
  double kept = 0;       // from its forward pass to its backward pass
  double freed = 0;      // of these, what is free again when the activation's product is taken apart
  double gradients = 0;  // of the MLP, at that moment
  double whole = 0;      // of the layer, whatever the number of tokens: updates of weights that adapters form
};
HfLayerBytes hf_layer_bytes(const FrameworkRun& run, const LayerSpec& layer);

// Bytes for each token of final norm, logits and loss.
double hf_loss_bytes(const FrameworkRun& run);

}  // namespace fivefold
