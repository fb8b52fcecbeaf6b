// Internal to src/planner/profiles: sizes of a model's parts on a rank of a tensor group, as the profiles of nanotron,
// FSDP 2 and DeepSpeed count them. Plain data, pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/profiles/framework_run.h"

namespace fivefold {

// Parameters of a rank. Experts are divided by ep x et, everything else that can be by t.
struct ModelSizes {
  std::vector<int64_t> layers;
  int64_t table = 0;  // token table (with positions)
  int64_t head = 0;   // output matrix of its own: nothing when tied
  int64_t norm = 0;   // the final one
  int64_t total() const;
};
ModelSizes model_sizes(const FrameworkRun& run);

// Widths of one layer's tensors, in elements a token, undivided.
struct LayerWidths {
  double query = 0, key_value = 0;  // a d; 2 k d. Recurrent mixers: all that their projections and convolution make
  double output = 0;                // of the mixer, as its last projection reads it: a d
  double latent = 0;                // of latent attention, before the norms of its low ranks and behind them
  double state = 0;                 // of recurrent mixers: outputs of the scan and what it takes beside key_value
  double inner = 0;                 // f, of the experts that a token goes to and of the shared ones
  double rows = 0;                  // experts that a token goes to
  double heads = 0;                 // of attention
  bool gated = true;
};
LayerWidths layer_widths(const LayerSpec& layer);

int64_t rank_tokens(const FrameworkRun& run);  // of a micro-batch and a rank of the context group

// Appends a line unless it is empty.
void add_line(ProfilePhase& phase, const std::string& name, double bytes, const std::string& formula);

}  // namespace fivefold
