// Neighbours of a run in another framework: the same model, GPUs and global batch with one setting changed, each with
// its memory and time. What an import answers "why does it not fit" and "where are the next 10 %" with. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "planner/profiles/framework_run.h"
#include "planner/profiles/framework_time.h"

namespace fivefold {

struct JudgedRun {
  int64_t needed = 0, capacity = 0;  // bytes of a GPU; capacity 0: not known
  FrameworkTime time;
  bool fits() const { return capacity == 0 || needed <= capacity; }
};

// REQUIRES: framework_refusals() finds nothing.
JudgedRun judge(const FrameworkRun& run, const HardwareSpec& hardware);

struct Neighbour {
  std::string change;  // "batch.micro = 2"
  JudgedRun judged;
};

// Each single change that the framework has for this model, fastest first, those that do not fit last. When nothing
// fits, and the run itself does not either, pairs of changes are tried too.
std::vector<Neighbour> neighbours(const FrameworkRun& run, const HardwareSpec& hardware);

}  // namespace fivefold
