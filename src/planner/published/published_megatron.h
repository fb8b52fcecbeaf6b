// Internal to src/planner/published: parts of read_megatron_row().
#pragma once

#include "planner/published/published_frameworks.h"

namespace fivefold {

// Layers as the arguments in the notes have them. Errors: they contradict the row.
Status read_megatron_model(const PublishedRun& row, FrameworkRun& run);
// Layers of uneven stages. Errors: they are not stated.
Status read_megatron_stages(const PublishedRun& row, FrameworkRun& run);
// What vendors' recipes and papers leave unsaid (published_recipes.cc): stages whose layers follow from their habits;
// the kernels and switches of their time. Returns whether it set the stages.
bool read_recipe_stages(const PublishedRun& row, FrameworkRun& run);
void read_recipe(const PublishedRun& row, FrameworkRun& run);

}  // namespace fivefold
