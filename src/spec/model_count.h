// Parameter counts of a ModelSpec in closed form, exact to the parameter. Independent of the Inventory, which a test
// holds against these. What counts is what the checkpoint stores for training: every tensor once (a tied output matrix
// is the embedding), the router's correction bias (a buffer in some frameworks) included, multi-token-prediction
// modules (num_mtp_layers) excluded. The formulas, per kind of layer, are in docs/memory.md.
#pragma once

#include <cstdint>

#include "spec/model.h"

namespace fivefold {

int64_t count_parameters(const ModelSpec& model);

// What one token uses: everything but the routed experts that it is not sent to. Embedding and head count in full.
int64_t count_active_parameters(const ModelSpec& model);

// What is looked up instead of multiplied: the token table, and the position table of GPT-2. When embeddings are tied
// the token table is the output matrix too: then FLOPs need it counted.
int64_t count_embedding_parameters(const ModelSpec& model);

// One layer, its norms included.
int64_t count_layer_parameters(const LayerSpec& layer, int64_t hidden);

}  // namespace fivefold
