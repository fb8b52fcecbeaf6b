// What a run holds on the host, and what it needs while its model is made.
// Derivations: docs/profiles/host.md. Pure functions, thread-safe.
#pragma once

#include "planner/profiles/framework_run.h"

namespace fivefold {

// How the run's model comes to be: as set, else the framework's default (transformers: FSDP hands out what one rank of
// a node has loaded, ZeRO-3 loads shards, whoever cuts nothing loads all of it; the others make shards).
ModelInit model_init(const FrameworkRun& run);

// Fills in `memory.host` and `memory.start`.
void add_host_memory(const FrameworkRun& run, ProfileMemory& memory);

}  // namespace fivefold
