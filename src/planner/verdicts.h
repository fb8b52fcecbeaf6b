// Verdicts: why the layouts that the plan is not lose, what a plan is bound by, and, when nothing fits, what keeps it
// from fitting and what would help. Every figure is a prediction or a bound. Not thread-safe: it explores.
#pragma once

#include <array>

#include "planner/layout_explorer.h"
#include "planner/search.h"

namespace fivefold {

using FastestByKind = std::array<std::optional<LayoutExplorer::Fastest>, std::size(kAllSplitKinds)>;
// Layers' microbatches that are replayed of a kind of layout that cannot be the plan: about a second.
inline constexpr int64_t kReplayedOfLosers = 200'000;

// What is wrong with data parallelism alone over so many ranks; nothing: it is legal.
std::optional<Error> plain_error(const SearchRequest& request, int ranks);

class Verdicts {
 public:
  // `fastest`: that fit, of each kind. REQUIRES: all outlive it.
  Verdicts(const SearchRequest& request, const Inventory& inventory, const LayoutSpace& space, LayoutExplorer& explorer,
           const FastestByKind& fastest, const std::vector<Candidate>& plans)
      : request_(request),
        inventory_(inventory),
        space_(space),
        explorer_(explorer),
        fastest_(fastest),
        plans_(plans) {}

  std::vector<Rejection> rejections() const;
  // REQUIRES: there is a plan.
  Wall wall() const;
  // Obstacle, smallest peak and fixes. REQUIRES: there is no plan.
  void describe_obstacle(SearchResult& result) const;

 private:
  // `rejection`: without its layout and reason. Nothing: the group has no layout.
  void add_rejection(Rejection rejection, const LayoutExplorer::Group& group,
                     const std::optional<LayoutExplorer::Fastest>& fastest, std::vector<Rejection>& rejections) const;
  // `least_seconds`: no layout of the kind takes less.
  std::string fits_reason(const ResolvedConfig& config, double least_seconds) const;
  std::string states_fix(const ResolvedConfig& config) const;
  void add_fixes(SearchResult& result, const ResolvedConfig& smallest) const;

  const SearchRequest& request_;
  const Inventory& inventory_;
  const LayoutSpace& space_;
  LayoutExplorer& explorer_;
  const FastestByKind& fastest_;
  const std::vector<Candidate>& plans_;
};

}  // namespace fivefold
