#include "planner/small_layout.h"

#include "planner/layout_explorer.h"
#include "planner/scope.h"
#include "spec/validate.h"

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

bool valid(const SearchRequest& request) {
  RunConfig alone = request.base;
  alone.parallel = {};
  alone.batch.global = 0;
  if (!validate_layout(request.model, alone).empty() || !planner_scope(request.model, alone).empty()) return false;
  for (const Error& error : validate_engine(request.model, alone))
    if (error.where.starts_with("method.")) return false;
  return true;
}

}  // namespace

std::optional<SmallLayout> smallest_layout(const SearchRequest& request, const Inventory& inventory, int ranks) {
  FixedKeys fixed = request.fixed;
  RunConfig base = request.base;
  base.batch.global = ranks * (fixed.micro ? base.batch.micro : 1);
  if (!fixed.micro) base.batch.micro = 1;
  if (!fixed.recompute) base.recompute.kind = RecomputeKind::kFull;
  if (!fixed.every) base.recompute.every = 1;
  fixed.micro = fixed.recompute = fixed.every = true;
  if (!fixed.schedule && !fixed.vpp) {
    base.parallel.schedule = ScheduleKind::k1F1B;
    base.parallel.vpp = 1;
    fixed.schedule = fixed.vpp = true;
  }
  PredictionMemo memo(request.model, inventory, request.hardware);
  std::optional<SmallLayout> small;
  for (const TensorReach reach : {TensorReach::kNode, TensorReach::kAnywhere}) {
    if (reach == TensorReach::kAnywhere && ranks_of_node(request.hardware, ranks) == ranks) continue;
    const LayoutSpace space(request.model, base, fixed, request.hardware, ranks, reach);
    LayoutExplorer explorer(memo, space);
    const std::optional<Layout> smallest = explorer.smallest({});
    if (!smallest) continue;
    small = SmallLayout{space.config(*smallest), *space.resolved(*smallest), explorer.seconds(*smallest).has_value()};
    if (small->fits) return small;
  }
  return small;
}

std::optional<ResolvedConfig> small_layout(const SearchRequest& request, const Inventory& inventory, int ranks) {
  std::optional<SmallLayout> small = smallest_layout(request, inventory, ranks);
  if (!small || !small->fits) return std::nullopt;
  return std::move(small->config);
}

std::vector<MethodNeed> method_needs(const SearchRequest& request, int most_ranks) {
  std::vector<MethodNeed> needs;
  if (request.base.method.kind != MethodKind::kFull) return needs;
  for (const MethodKind kind : {MethodKind::kFull, MethodKind::kLora, MethodKind::kQlora}) {
    SearchRequest of_kind = request;
    of_kind.base.method.kind = kind;
    of_kind.model = with_method(request.model, of_kind.base.method);
    if (!valid(of_kind)) continue;
    const Inventory inventory = build_inventory(of_kind.model);
    MethodNeed need{.kind = kind};
    std::optional<ResolvedConfig> smallest;
    need.ranks =
        fewest(most_ranks, static_cast<int>(std::max<int64_t>(1, request.hardware.devices_per_node)), [&](int ranks) {
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
