// Search: the layouts of a run, ranked by predicted throughput. Deterministic: the same request gives the same result.
// Pure functions, thread-safe.
//
// Note [How the search prunes]
//   Candidates are the product of rank counts, ZeRO levels, shard sizes, microbatches, recompute segments and
//   precisions. A candidate whose states and saved activations alone exceed the capacity is dropped before anything is
//   replayed. The others get a predicted time; in order of throughput their memory is replayed until enough of them
//   fit.
#pragma once

#include <string>
#include <vector>

#include "planner/bounds.h"
#include "planner/capacity.h"
#include "planner/cost.h"

namespace fivefold {

enum class SearchGoal : uint8_t { kThroughput, kFewestRanks };

struct SearchRequest {
  ModelSpec model;
  RunConfig base;  // what the search does not choose: sequence, optimizer, data, limits; batch.global 0: chosen
  HardwareSpec hardware;
  std::vector<int>
      rank_counts;  // ascending; kThroughput takes the last, kFewestRanks the first at which something fits
  SearchGoal goal = SearchGoal::kThroughput;
  int max_plans = 5;
};

struct Candidate {
  ResolvedConfig config;
  StepCost cost;
  Ledger ledger;  // with what is outside the tensors
  int64_t capacity = 0;
  double tokens_per_s = 0;
  double mfu = 0, hfu = 0;  // causal convention
};

// What keeps a configuration from fitting.
enum class Obstacle : uint8_t { kStates, kActivations, kOneLayer };
std::string_view to_string(Obstacle);
// What the best plan is bound by.
enum class Wall : uint8_t { kMemory, kCompute, kCommunication };
std::string_view to_string(Wall);

struct Rejection {
  ResolvedConfig config;
  std::string reason;
  std::string fix;
};

// A change that makes a run fit of which nothing else does, with what it gives.
struct Fix {
  std::string change;
  std::string price;
};

struct SearchResult {
  std::vector<Candidate> plans;           // best first; empty: nothing fits
  std::vector<Rejection> rejected;        // the most promising ones
  int64_t evaluated = 0;                  // configurations looked at
  Wall wall = Wall::kCompute;             // of plans.front()
  Obstacle obstacle = Obstacle::kStates;  // when nothing fits
  int64_t smallest_peak = 0;              // when nothing fits: of the configuration that needs least
  std::vector<Fix> fixes;                 // when nothing fits
};

// Errors: no rank count divides the global batch (with the nearest that is legal); a model or setting outside the
// scope.
Result<SearchResult> search_layouts(const SearchRequest& request);

// "dp=8 zero=3 shard=8 micro=4 accumulation=2 recompute=none bf16".
std::string layout_text(const ResolvedConfig& config);

}  // namespace fivefold
