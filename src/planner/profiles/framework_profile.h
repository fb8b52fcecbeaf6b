// Internal to src/planner/profiles: the profile of each framework, and what they share.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "planner/profiles/framework_run.h"

namespace fivefold {

ProfileMemory megatron_memory(const FrameworkRun& run);
ProfileMemory nanotron_memory(const FrameworkRun& run);
ProfileMemory fsdp2_memory(const FrameworkRun& run);
ProfileMemory deepspeed_memory(const FrameworkRun& run);
ProfileMemory hf_memory(const FrameworkRun& run);

// Layers of each of nanotron's stages.
std::vector<int64_t> nanotron_stages(const FrameworkRun& run);

// Of the pipeline stages that `run.reported` may mean, the one with the largest peak. `memory_of_stage` maps a stage
// to its ProfileMemory. REQUIRES: a stage.
template <class MemoryOfStage>
ProfileMemory reported_memory(const FrameworkRun& run, MemoryOfStage memory_of_stage) {
  const int64_t first = run.reported == ReportedRank::kLast ? run.pp - 1 : 0;
  const int64_t last = run.reported == ReportedRank::kFirst ? 0 : run.pp - 1;
  std::optional<ProfileMemory> most;
  for (int64_t stage = first; stage <= last; ++stage) {
    ProfileMemory memory = memory_of_stage(stage);
    memory.stage = stage;
    if (!most || memory.peak().bytes() > most->peak().bytes()) most = std::move(memory);
  }
  return *std::move(most);
}

}  // namespace fivefold
