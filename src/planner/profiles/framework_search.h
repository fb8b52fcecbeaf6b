// FrameworkSearch: the layouts of a run in another framework, ranked by predicted throughput. Deterministic: the same
// request gives the same result. Pure functions, thread-safe.
//
// Note [How the search is exact]
//   Every layout of the space (framework_space.h) has a bound that its step is not below
//   (FrameworkClock::least_seconds). They are taken in the order of their bounds; what fits is replayed, until the next
//   bound is above the best found. Memory is asked of the profile itself; it grows with the micro-batch, so of layouts
//   that differ in nothing else what is above one that does not fit is not asked. The tests compare with all layouts of
//   small spaces, each predicted by itself.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/profiles/framework_space.h"
#include "planner/profiles/framework_time.h"
#include "planner/search.h"

namespace fivefold {

struct FrameworkRequest {
  FrameworkRun base;  // what the search does not choose, and the values of fixed keys
  FixedKeys fixed;
  HardwareSpec hardware;
  int64_t gpus = 1;
  int64_t global_batch = 0;  // sequences a step; 0: chosen_global_batch()
  int max_plans = 6;
};

// Sequences a step when none are asked for: 2^19 tokens on up to 8 GPUs, twice that with every four times as many, 2^24
// at most; a power of two times the odd part of the number of GPUs.
int64_t chosen_global_batch(int64_t gpus, int64_t sequence);

struct FrameworkPlan {
  FrameworkLayout layout;
  FrameworkRun run;
  FrameworkTime time;
  ProfileMemory memory;
  int64_t needed = 0, capacity = 0;  // bytes of a GPU: needed_bytes(), and what it has
  double tokens_per_s = 0;           // of all GPUs
  bool fits() const { return needed <= capacity; }
};
// One layout by itself.
FrameworkPlan framework_plan(const FrameworkRun& run, const HardwareSpec& hardware);

// A kind of layout that the plan is not: its fastest, or where none fits its smallest.
struct FrameworkLoser {
  std::string kind;                   // "tp only"
  std::optional<FrameworkPlan> plan;  // nothing: no layout of the kind is legal
};

struct FrameworkResult {
  std::vector<FrameworkPlan> plans;       // best first, no two of the same tp, cp, pp, ep; empty: nothing fits
  std::optional<FrameworkPlan> smallest;  // when nothing fits: what needs least
  std::vector<FrameworkLoser> losers;     // by the splits that they have
  int64_t layouts = 0;                    // in the space
  int64_t bounds = 0, sized = 0, replayed = 0;
};

// Errors ("parallel"): no layout is legal, with what is wrong with data parallelism alone.
Result<FrameworkResult> search_framework(const FrameworkRequest& request);

}  // namespace fivefold
