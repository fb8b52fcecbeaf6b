#include "planner/method_search.h"

#include <algorithm>

#include "planner/scope.h"
#include "planner/small_layout.h"

namespace fivefold {
namespace {

// Ranks of which `fits` says whether they are enough; 0: not even the most.
template <typename Fits>
int fewest(int most, int node, const Fits& fits) {
  int few = 0, many = 1;
  while (many <= most && !fits(many)) {
    few = many;
    many *= 2;
  }
  if (many > most) return 0;
  while (many - few > node) {
    const int between = few + std::max(node, (many - few) / 2 / node * node);
    if (between >= many) break;
    (fits(between) ? many : few) = between;
  }
  return many;
}

SearchRequest with_kind(const SearchRequest& request, MethodKind kind) {
  SearchRequest of_kind = request;
  of_kind.base.method.kind = kind;
  of_kind.model = with_method(std::move(of_kind.model), of_kind.base.method);
  return of_kind;
}

// Whatever the layout: no other refusals than those of the request itself, which may be only planned.
bool is_valid(const SearchRequest& request, const SearchRequest& of_kind) {
  const auto alone = [](RunConfig config) {
    config.parallel = {};
    config.batch.global = 0;
    return config;
  };
  return !adds_refusal(request.model, alone(request.base), alone(of_kind.base));
}

// Of several numbers of ranks those at which not even the smallest layout fits, but for the last.
void leave_out_too_few(const std::vector<MethodNeed>& needs, SearchRequest& request) {
  const auto need =
      std::find_if(needs.begin(), needs.end(), [&](const MethodNeed& n) { return n.kind == request.base.method.kind; });
  if (need == needs.end()) return;
  std::vector<int>& counts = request.rank_counts;
  const auto enough = need->ranks == 0 ? counts.end() : std::lower_bound(counts.begin(), counts.end(), need->ranks);
  counts.erase(counts.begin(), std::min(enough, counts.end() - 1));
}

}  // namespace

Result<MethodSearch> search_methods(const SearchRequest& request) {
  MethodSearch search;
  Result<SearchResult> asked = search_layouts(request);
  if (!asked.ok()) return asked.error();
  search.tried.push_back({with_kind(request, request.base.method.kind), *std::move(asked)});
  search.needs = method_needs(request, request.rank_counts.back());
  if (request.base.method.kind == MethodKind::kFull && !request.fixed.method) {
    for (const MethodKind kind : {MethodKind::kLora, MethodKind::kQlora}) {
      if (search.tried.back().fits()) break;
      SearchRequest of_kind = with_kind(request, kind);
      if (!is_valid(request, of_kind)) continue;
      leave_out_too_few(search.needs, of_kind);
      Result<SearchResult> result = search_layouts(of_kind);
      if (result.ok()) search.tried.push_back({std::move(of_kind), *std::move(result)});
    }
  }
  return search;
}

std::vector<MethodNeed> method_needs(const SearchRequest& request, int most_ranks) {
  std::vector<MethodNeed> needs;
  if (request.base.method.kind != MethodKind::kFull) return needs;
  const int node = static_cast<int>(std::max<int64_t>(1, request.hardware.devices_per_node));
  for (const MethodKind kind : {MethodKind::kFull, MethodKind::kLora, MethodKind::kQlora}) {
    const SearchRequest of_kind = with_kind(request, kind);
    if (!is_valid(request, of_kind)) continue;
    const Inventory inventory = build_inventory(of_kind.model);
    MethodNeed need{.kind = kind};
    std::optional<ResolvedConfig> smallest;
    need.ranks = fewest(most_ranks, node, [&](int ranks) {
      std::optional<ResolvedConfig> config = small_layout(of_kind, inventory, ranks);
      const bool fits = config.has_value();
      if (fits) smallest = std::move(config);  // the last one that fits has the fewest
      return fits;
    });
    if (smallest) need.peak = fullest_rank(of_kind.model, inventory, *smallest, request.hardware).ledger.peak_total;
    if (kind == MethodKind::kFull && need.ranks == 1) return {};
    needs.push_back(need);
  }
  return needs;
}

}  // namespace fivefold
