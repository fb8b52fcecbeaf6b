#include "planner/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "planner/scope.h"
#include "planner/verdicts.h"

namespace fivefold {
namespace {

// At one number of ranks.
class LayoutSearch {
 public:
  LayoutSearch(const SearchRequest& request, const Inventory& inventory, int ranks, TensorReach reach)
      : request_(request),
        inventory_(inventory),
        memo_(request.model, inventory, request.hardware),
        space_(request.model, request.base, request.fixed, request.hardware, ranks, reach),
        explorer_(memo_, space_) {}

  bool empty() const { return explorer_.empty(); }

  SearchResult run() {
    // What is slower than what other kinds have, and not nearly equal to it, is only named among those that lose.
    double least = std::numeric_limits<double>::infinity();
    for (const SplitKind kind : kAllSplitKinds) {
      auto& fastest = fastest_[static_cast<size_t>(kind)];
      fastest = explorer_.fastest({.has = [kind](const Layout& l) { return split_kind(l) == kind; }},
                                  LayoutExplorer::Memory::kCounts,
                                  {.seconds = least / kEqualSpeed, .replayed = kReplayedOfLosers});
      if (fastest) least = std::min(least, fastest->timed.seconds);
    }
    if (least < std::numeric_limits<double>::infinity()) collect_plans(least);
    const Verdicts verdicts(request_, inventory_, space_, explorer_, fastest_, result_.plans);
    result_.rejected = verdicts.rejections();
    if (result_.plans.empty())
      verdicts.describe_obstacle(result_);
    else
      result_.wall = verdicts.wall();
    result_.evaluated = explorer_.num_bounds();
    result_.replayed = explorer_.num_replays();
    return std::move(result_);
  }

 private:
  // `least`: what the fastest takes.
  void collect_plans(double least) {
    const auto most = static_cast<size_t>(request_.max_plans);
    std::vector<TimedLayout> chosen = simplest(least / kEqualSpeed, most);
    if (chosen.size() < most)
      for (const TimedLayout& timed : explorer_.fastest_ones(most))
        if (timed.seconds > least / kEqualSpeed) chosen.push_back(timed);
    for (const TimedLayout& timed : chosen) result_.plans.push_back(candidate(timed.layout));
  }

  // Of those that take at most so long; of equally simple ones the faster first.
  std::vector<TimedLayout> simplest(double seconds, size_t count) {
    std::vector<TimedLayout> bounded = explorer_.within(seconds);
    std::stable_sort(bounded.begin(), bounded.end(), [](const TimedLayout& a, const TimedLayout& b) {
      return simplicity(a.layout) < simplicity(b.layout);
    });
    std::vector<TimedLayout> chosen;
    for (auto begin = bounded.begin(); begin != bounded.end() && chosen.size() < count;) {
      const auto end = std::find_if(begin, bounded.end(), [&](const TimedLayout& timed) {
        return simplicity(timed.layout) != simplicity(begin->layout);
      });
      std::vector<TimedLayout> equal;
      for (; begin != end; ++begin)
        if (const std::optional<double> exact = explorer_.seconds(begin->layout); exact && *exact <= seconds)
          equal.push_back({begin->layout, *exact});
      std::stable_sort(equal.begin(), equal.end(),
                       [](const TimedLayout& a, const TimedLayout& b) { return a.seconds < b.seconds; });
      chosen.insert(chosen.end(), equal.begin(), equal.end());
    }
    chosen.resize(std::min(chosen.size(), count));
    return chosen;
  }

  Candidate candidate(const Layout& layout) {
    Candidate plan;
    plan.config = *space_.resolved(layout);
    plan.capacity = planned_capacity(plan.config, request_.hardware);
    plan.cost = predict_cost(memo_, plan.config);
    RankLedger fullest = fullest_rank(request_.model, inventory_, plan.config, request_.hardware);
    plan.rank = fullest.rank;
    plan.ledger = std::move(fullest.ledger);
    plan.tokens_per_s = static_cast<double>(plan.config.tokens_per_step) / plan.cost.seconds;
    const StepFlops flops = step_flops(request_.model, inventory_, plan.config);
    const double available = plan.cost.seconds * peak_flops_per_s(plan.config, request_.hardware);
    plan.mfu = flops.model_causal() / available;
    plan.hfu = flops.hardware_causal() / available;
    return plan;
  }

  const SearchRequest& request_;
  const Inventory& inventory_;
  PredictionMemo memo_;
  LayoutSpace space_;
  LayoutExplorer explorer_;
  FastestByKind fastest_;
  SearchResult result_;
};

Error no_layout(const SearchRequest& request, int ranks) {
  if (const std::optional<Error> error = plain_error(request, ranks)) return *error;
  return {"parallel",
          fmt::format("no layout of {} ranks has {}", ranks, fmt::join(fixed_text(request.fixed, request.base), ", ")),
          "leave one of these keys to the search, or change --gpus"};
}

}  // namespace

std::string_view to_string(Obstacle obstacle) {
  static constexpr std::string_view kNames[] = {"states", "activations", "one layer"};
  return kNames[static_cast<size_t>(obstacle)];
}

std::string_view to_string(Wall wall) {
  static constexpr std::string_view kNames[] = {"memory", "compute", "communication"};
  return kNames[static_cast<size_t>(wall)];
}

std::vector<std::string> fixed_text(const FixedKeys& fixed, const RunConfig& base) {
  const ParallelConfig& parallel = base.parallel;
  std::vector<std::string> keys;
  const auto add = [&](bool is_fixed, std::string_view key, const auto& value) {
    if (is_fixed) keys.push_back(fmt::format("{} = {}", key, value));
  };
  add(fixed.dp, "parallel.dp", parallel.dp);
  add(fixed.tp, "parallel.tp", parallel.tp);
  add(fixed.sp, "parallel.sp", parallel.sp);
  add(fixed.cp, "parallel.cp", parallel.cp);
  add(fixed.cp_kind, "parallel.cp_kind", to_string(parallel.cp_kind));
  add(fixed.pp, "parallel.pp", parallel.pp);
  add(fixed.vpp, "parallel.vpp", parallel.vpp);
  add(fixed.schedule, "parallel.schedule", to_string(parallel.schedule));
  add(fixed.zero, "parallel.zero", parallel.zero);
  add(fixed.shard_size, "parallel.shard_size", parallel.shard_size);
  add(fixed.micro, "batch.micro", base.batch.micro);
  add(fixed.compute, "precision.compute", to_string(base.precision.compute));
  add(fixed.recompute, "recompute.kind", to_string(base.recompute.kind));
  add(fixed.every, "recompute.every", base.recompute.every);
  return keys;
}

std::string layout_text(const ResolvedConfig& config) {
  const ParallelConfig& parallel = config.config.parallel;
  std::string text = fmt::format("dp={} zero={}", parallel.dp, parallel.zero);
  if (parallel.tp > 1) text = fmt::format("tp={}{} {}", parallel.tp, parallel.sp ? " sp" : "", text);
  if (parallel.cp > 1) text = fmt::format("cp={} {} {}", parallel.cp, to_string(parallel.cp_kind), text);
  if (parallel.pp > 1)
    text = fmt::format("pp={}{} {} {}", parallel.pp, parallel.vpp > 1 ? fmt::format(" vpp={}", parallel.vpp) : "",
                       to_string(parallel.schedule), text);
  if (parallel.stages.cut == StageCut::kBalanced) text = "stages=balanced " + text;
  if (parallel.stages.cut == StageCut::kListed)
    text = fmt::format("stages={} {}", fmt::join(parallel.stages.layers, ","), text);
  if (parallel.zero > 0 && parallel.shard_size < parallel.dp * parallel.cp)
    text += fmt::format(" shard_size={}", parallel.shard_size);
  if (parallel.reduce == ReduceWhen::kStep) text += " reduce=step";
  if (parallel.bucket_layers > 1) text += fmt::format(" bucket_layers={}", parallel.bucket_layers);
  text += fmt::format(" micro={} accumulation={}", config.config.batch.micro, config.num_microbatches);
  if (config.config.recompute.kind == RecomputeKind::kFull)
    text += fmt::format(" recompute=full/{}", config.config.recompute.every);
  if (config.config.recompute.kind == RecomputeKind::kSelective)
    text += fmt::format(" recompute=selective/{}", fmt::join(config.config.recompute.tensors, "+"));
  return text + " " + std::string(to_string(config.config.precision.compute));
}

Result<SearchResult> search_layouts(const SearchRequest& asked) {
  SearchRequest request = asked;
  request.model = with_method(std::move(request.model), request.base.method);
  if (const std::vector<Error> errors = planner_scope(request.model, request.base); !errors.empty())
    return errors.front();
  const Inventory inventory = build_inventory(request.model);
  std::optional<SearchResult> last;
  int64_t evaluated = 0, replayed = 0;
  const bool fewest = request.goal == SearchGoal::kFewestRanks;
  int ranks = 0;
  for (size_t i = fewest ? 0 : request.rank_counts.size() - 1; i < request.rank_counts.size(); ++i) {
    ranks = request.rank_counts[i];
    for (const TensorReach reach : {TensorReach::kNode, TensorReach::kAnywhere}) {
      if (reach == TensorReach::kAnywhere && ranks_of_node(request.hardware, ranks) == ranks) continue;
      LayoutSearch search(request, inventory, ranks, reach);
      if (search.empty()) continue;
      last = search.run();
      evaluated = last->evaluated += evaluated;
      replayed = last->replayed += replayed;
      if (!last->plans.empty()) return *std::move(last);
    }
  }
  if (!last) return no_layout(request, ranks);
  return *std::move(last);
}

}  // namespace fivefold
