#include "planner/profiles/framework_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <tuple>

#include "base/integer.h"
#include "planner/profiles/device_need.h"
#include "planner/profiles/framework_config.h"
#include "planner/profiles/published_error.h"

namespace fivefold {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Bounded {
  double seconds = 0;
  FrameworkLayout layout;
};

SplitKind split_kind(const FrameworkLayout& l) {
  return fivefold::split_kind(Layout{.tp = l.tp, .cp = l.cp, .pp = l.pp});
}

// At one reach of tensor parallelism.
class FrameworkSearch {
 public:
  FrameworkSearch(const FrameworkRequest& request, int64_t global, TensorReach reach)
      : request_(request),
        space_(request.base, request.fixed, request.hardware, request.gpus, global, reach),
        clock_(request.base, request.hardware),
        run_(request.base) {}

  // False: the space is empty.
  bool run(FrameworkResult& result) {
    bound_all();
    if (bounded_.empty()) return false;
    find_plans(result);
    if (result.plans.empty()) result.smallest = smallest();
    find_losers(result);
    result.layouts += static_cast<int64_t>(bounded_.size());
    result.bounds += bounds_, result.sized += sized_, result.replayed += replayed_;
    return true;
  }

 private:
  void bound_all() {
    const FrameworkLayout* same = nullptr;
    ModelTimes times;
    const std::vector<FrameworkLayout> layouts = space_.layouts();
    bounded_.reserve(layouts.size());
    for (const FrameworkLayout& layout : layouts) {
      space_.apply(layout, run_);
      if (same == nullptr || !shares_times(*same, layout)) times = clock_.times(run_);
      same = &layout;
      bounded_.push_back({clock_.least_seconds(run_, times), layout});
      ++bounds_;
    }
    std::ranges::sort(bounded_, [](const Bounded& a, const Bounded& b) {
      return std::tie(a.seconds, a.layout) < std::tie(b.seconds, b.layout);
    });
  }
  static bool shares_times(const FrameworkLayout& a, const FrameworkLayout& b) {
    const auto key = [](const FrameworkLayout& l) {
      return std::tuple(l.tp, l.sp, l.cp, l.ep, l.etp, l.micro, l.checkpointing, l.pp > 1);
    };
    return key(a) == key(b);
  }

  // Micro-batches of layouts that are alike otherwise: the largest that fits, the smallest that does not.
  struct Fitting {
    int64_t fits = 0, fails = std::numeric_limits<int64_t>::max();
  };
  bool fits(const FrameworkLayout& layout) {
    FrameworkLayout others = layout;
    others.micro = 0;
    Fitting& known = fitting_[others];
    if (layout.micro <= known.fits) return true;
    if (layout.micro >= known.fails) return false;
    // What needs least of all that is alike but for the micro-batch: mostly it tells of all.
    if (known.fits == 0 && layout.micro > 1 && known.fails == std::numeric_limits<int64_t>::max()) {
      FrameworkLayout least = layout;
      least.micro = 1;
      if (needed(least) > capacity()) {
        known.fails = 1;
        return false;
      }
      known.fits = 1;
    }
    const bool fit = needed(layout) <= capacity();
    (fit ? known.fits : known.fails) = layout.micro;
    return fit;
  }
  int64_t capacity() const { return request_.base.capacity_bytes; }
  int64_t needed(const FrameworkLayout& layout) {
    space_.apply(layout, run_);
    ++sized_;
    return needed_bytes(step_memory(run_));
  }
  double seconds(const FrameworkLayout& layout) {
    const auto [found, fresh] = exact_.try_emplace(layout);
    if (!fresh) return found->second;
    space_.apply(layout, run_);
    ++replayed_;
    return found->second = clock_.step(run_, clock_.times(run_)).seconds;
  }
  FrameworkPlan plan(const FrameworkLayout& layout) {
    space_.apply(layout, run_);
    FrameworkPlan plan = framework_plan(run_, request_.hardware);
    plan.layout = layout;
    return plan;
  }

  // The fastest that fits and `has`, no slower than `most` seconds.
  template <class Has>
  std::optional<Bounded> fastest(const Has& has, double most = kInfinity) {
    std::optional<Bounded> best;
    for (const Bounded& candidate : bounded_) {
      if (candidate.seconds > (best ? best->seconds : most)) break;
      if (!has(candidate.layout) || !fits(candidate.layout)) continue;
      const double exact = seconds(candidate.layout);
      if (exact <= most && (!best || exact < best->seconds)) best = Bounded{exact, candidate.layout};
    }
    return best;
  }

  // Whether it may not fit after all, within what the profile's predictions were off by.
  bool is_tight(const FrameworkLayout& layout) {
    const auto bytes = static_cast<double>(needed(layout));
    return bytes * (1 + published_error(run_).memory) > static_cast<double>(capacity());
  }

  // Of those within kEqualSpeed of the fastest that surely fit, else of all of them, the simplest is the plan; the next
  // are the fastest with other splits.
  void find_plans(FrameworkResult& result) {
    const std::optional<Bounded> best = fastest([](const FrameworkLayout&) { return true; });
    if (!best) return;
    FrameworkLayout chosen = best->layout;
    bool chosen_is_tight = is_tight(chosen);
    for (const Bounded& candidate : bounded_) {
      if (candidate.seconds > best->seconds / kEqualSpeed) break;
      const FrameworkLayout& layout = candidate.layout;
      const bool simpler = std::pair(simplicity(layout), layout) < std::pair(simplicity(chosen), chosen);
      if ((!simpler && !chosen_is_tight) || !fits(layout) || seconds(layout) > best->seconds / kEqualSpeed) continue;
      const bool tight = is_tight(layout);
      if (tight == chosen_is_tight ? !simpler : tight) continue;
      chosen = layout;
      chosen_is_tight = tight;
    }
    result.plans.push_back(plan(chosen));
    const auto splits = [](const FrameworkLayout& l) { return std::tuple(l.tp, l.cp, l.pp, l.ep); };
    std::vector<std::tuple<int, int, int, int>> shown = {splits(chosen)};
    while (static_cast<int>(result.plans.size()) < request_.max_plans) {
      const std::optional<Bounded> next =
          fastest([&](const FrameworkLayout& l) { return std::ranges::find(shown, splits(l)) == shown.end(); });
      if (!next) return;
      shown.push_back(splits(next->layout));
      result.plans.push_back(plan(next->layout));
    }
  }

  // Of what is smallest in each kind: one sequence at a time, everything recomputed, states sharded.
  template <class Has>
  std::optional<FrameworkPlan> smallest_of(const Has& has) {
    std::optional<FrameworkLayout> least;
    int64_t bytes = 0;
    for (const Bounded& candidate : bounded_) {
      const FrameworkLayout& l = candidate.layout;
      if (!has(l) || (l.micro > 1 && !request_.fixed.micro) || l.checkpointing != space_.leanest()) continue;
      const int64_t needs = needed(l);
      if (least && needs >= bytes) continue;
      least = l, bytes = needs;
    }
    return least ? std::optional(plan(*least)) : std::nullopt;
  }
  std::optional<FrameworkPlan> smallest() {
    return smallest_of([](const FrameworkLayout&) { return true; });
  }

  void find_losers(FrameworkResult& result) {
    for (const SplitKind kind : kAllSplitKinds) {
      const auto has = [kind](const FrameworkLayout& l) { return split_kind(l) == kind; };
      if (!result.plans.empty() && has(result.plans[0].layout)) continue;
      FrameworkLoser loser{std::string(to_string(kind)), std::nullopt};
      if (const std::optional<Bounded> found = fastest(has))
        loser.plan = plan(found->layout);
      else
        loser.plan = smallest_of(has);
      result.losers.push_back(std::move(loser));
    }
  }

  const FrameworkRequest& request_;
  FrameworkSpace space_;
  FrameworkClock clock_;
  FrameworkRun run_;
  std::vector<Bounded> bounded_;
  std::map<FrameworkLayout, Fitting> fitting_;
  std::map<FrameworkLayout, double> exact_;
  int64_t bounds_ = 0, sized_ = 0, replayed_ = 0;
};

Error no_layout(const FrameworkRequest& request, int64_t global) {
  FrameworkRun plain = request.base;
  plain.dp = request.gpus;
  plain.tp = plain.cp = plain.pp = plain.vpp = plain.ep = 1;
  plain.sp = false;
  if (global % request.gpus != 0)
    return {"batch.global", fmt::format("{} sequences do not divide among {} replicas", global, request.gpus),
            fmt::format("use {}", round_up(global, request.gpus))};
  if (const std::vector<Error> errors = framework_refusals(plain); !errors.empty()) return errors.front();
  return {"parallel", fmt::format("no layout of {} GPUs has the keys that are set", request.gpus),
          "leave one of them to the search"};
}

}  // namespace

int64_t chosen_global_batch(int64_t gpus, int64_t sequence) {
  int64_t tokens = int64_t{1} << 19;
  for (int64_t n = 8; n < gpus && tokens < (int64_t{1} << 24); n *= 4) tokens *= 2;
  const int64_t odd = gpus >> std::countr_zero(static_cast<uint64_t>(gpus));
  const int64_t rows = std::max<int64_t>(1, div_floor(tokens, sequence));
  int64_t global = odd;
  while (2 * global <= rows) global *= 2;
  return global;
}

FrameworkPlan framework_plan(const FrameworkRun& run, const HardwareSpec& hardware) {
  FrameworkPlan plan;
  plan.run = run;
  const FrameworkClock clock(run, hardware);
  plan.time = clock.step(run, clock.times(run));
  plan.memory = profile_memory(run);
  plan.needed = needed_bytes(plan.memory);
  plan.capacity = run.capacity_bytes;
  plan.tokens_per_s = plan.time.tokens_per_s * static_cast<double>(run.dp * run.tp * run.cp * run.pp);
  return plan;
}

Result<FrameworkResult> search_framework(const FrameworkRequest& request) {
  int64_t global = request.global_batch;
  if (global == 0) {
    global = chosen_global_batch(request.gpus, request.base.sequence);
    // Of data parallelism alone every GPU is a replica.
    if (request.base.framework == Framework::kHf) global = round_up(global, request.gpus);
  }
  FrameworkResult result;
  bool any = false;
  for (const TensorReach reach : {TensorReach::kNode, TensorReach::kAnywhere}) {
    if (reach == TensorReach::kAnywhere && request.gpus <= request.hardware.devices_per_node) break;
    FrameworkResult found;
    found.layouts = result.layouts, found.bounds = result.bounds, found.sized = result.sized,
    found.replayed = result.replayed;
    if (!FrameworkSearch(request, global, reach).run(found)) continue;
    any = true;
    result = std::move(found);
    if (!result.plans.empty()) break;
  }
  if (!any) return no_layout(request, global);
  return result;
}

}  // namespace fivefold
