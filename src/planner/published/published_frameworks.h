// Internal to src/planner/published: what the rows of one framework's sources state beside shape and layout. `run` has
// model, layout, batch, precision class and GPU already; each function sets framework, switches, method and
// checkpointing. Errors: the reason to leave the row out.
#pragma once

#include "planner/published/published_run.h"

namespace fivefold {

Status read_megatron_row(const PublishedRun& row, FrameworkRun& run);
Status read_nanotron_row(const PublishedRun& row, FrameworkRun& run);
Status read_fsdp2_row(const PublishedRun& row, FrameworkRun& run);
Status read_deepspeed_row(const PublishedRun& row, FrameworkRun& run);
Status read_hf_row(const PublishedRun& row, FrameworkRun& run);

}  // namespace fivefold
