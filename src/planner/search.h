// Search: the layouts of a run, ranked by predicted throughput. Deterministic: the same request gives the same result.
// Pure functions, thread-safe.
//
// Note [How the search prunes]
//   The space of layouts (layout_space.h) is searched best first by bounds that no prediction is below
//   (layout_explorer.h), so what is not replayed cannot be faster than what is found, or cannot fit. Of the layouts
//   within kEqualSpeed of the fastest that fits the simplest is the plan. The tests compare with all layouts of small
//   spaces, each predicted by itself.
#pragma once

#include <string>
#include <vector>

#include "planner/bounds.h"
#include "planner/capacity.h"
#include "planner/cost.h"
#include "planner/layout_space.h"
#include "planner/remedies.h"

namespace fivefold {

enum class SearchGoal : uint8_t { kThroughput, kFewestRanks };

struct SearchRequest {
  ModelSpec model;
  RunConfig base;   // what the search does not choose: sequence, optimizer, data, limits; batch.global 0: chosen
  FixedKeys fixed;  // of the keys that it chooses those that stay as they are in `base`
  HardwareSpec hardware;
  std::vector<int>
      rank_counts;  // ascending; kThroughput takes the last, kFewestRanks the first at which something fits
  SearchGoal goal = SearchGoal::kThroughput;
  int max_plans = 6;  // the best, and those that come next
};

// Plans this near to the fastest are told apart by simplicity().
inline constexpr double kEqualSpeed = 0.97;

struct Candidate {
  ResolvedConfig config;
  StepCost cost;
  int rank = 0;   // whose ledger it is: of a pipeline the rank that needs most
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

// Which axes beside data parallelism a layout uses.
enum class SplitKind : uint8_t { kNone, kTp, kPp, kCp, kTpPp, kCpMore };
inline constexpr SplitKind kAllSplitKinds[] = {SplitKind::kNone, SplitKind::kTp,   SplitKind::kPp,
                                               SplitKind::kCp,   SplitKind::kTpPp, SplitKind::kCpMore};
std::string_view to_string(SplitKind);
SplitKind split_kind(const Layout& layout);

// A kind of layout that the plan is not, by its splits or, at the plan's splits, by its ZeRO level: its fastest layout,
// or, where none fits, its smallest.
struct Rejection {
  std::string kind;                // "tp only", "ZeRO-2"
  std::optional<SplitKind> split;  // nothing: a ZeRO level
  bool fits = false;
  std::optional<ResolvedConfig> config;  // nothing: no layout of the kind is legal
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
  std::vector<Rejection> rejected;        // kinds of splits first, then ZeRO levels at the best's splits
  int64_t evaluated = 0;                  // bounds: of a layout, or of all that share their first axes
  int64_t replayed = 0;                   // layouts predicted in full
  Wall wall = Wall::kCompute;             // of plans.front()
  Obstacle obstacle = Obstacle::kStates;  // when nothing fits
  int64_t smallest_peak = 0;              // when nothing fits: of the configuration that needs least
  int64_t smallest_capacity = 0;          // when nothing fits: what a rank of it may fill
  std::vector<Fix> fixes;                 // when nothing fits
  std::optional<RemedyList> remedies;     // when nothing fits: of the layout that needs least, as changes of `base`
};

// Errors: no layout is legal at any rank count, with what is wrong with data parallelism alone; a model or setting
// outside the scope.
Result<SearchResult> search_layouts(const SearchRequest& request);

// Which of `fixed` are set, as keys with their values: "parallel.tp = 2".
std::vector<std::string> fixed_text(const FixedKeys& fixed, const RunConfig& base);

// "dp=8 zero=3 shard=8 micro=4 accumulation=2 recompute=none bf16".
std::string layout_text(const ResolvedConfig& config);

}  // namespace fivefold
