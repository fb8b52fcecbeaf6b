// Internal to src/planner/published: what the names of GPUs and models say beside the columns.
#pragma once

#include "planner/published/published_run.h"

namespace fivefold {

// "A100-80GB-SXM" and its like to the name of a file of configs/gpus; empty: of none.
std::string published_gpu(const PublishedRun& row);
// Of configs/clusters, where a GPU is in several: by the network that the row states, or NVIDIA's own.
std::string published_cluster(const PublishedRun& row);
// Vocabularies of models that rows name without one; 0: not known.
int64_t known_vocabulary(const std::string& model);
// What a shape alone does not say of a model that is known by its name: latent attention, layers of other kinds.
void read_named_model(const PublishedRun& row, ModelSpec& model);

}  // namespace fivefold
