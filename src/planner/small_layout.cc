#include "planner/small_layout.h"

#include "planner/layout_explorer.h"

namespace fivefold {
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

}  // namespace fivefold
