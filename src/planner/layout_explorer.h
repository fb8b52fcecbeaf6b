// LayoutExplorer: the fastest layouts of a space, found by bounds and replays. Deterministic; not thread-safe.
//
// Note [Best first]
//   A queue holds layouts whose last axes are open, each with a bound of all that it stands for (layout_bounds.h). The
//   one with the least bound is opened: a split into its schedules, a schedule into what is recomputed, that into
//   shardings. A layout without an open axis is dropped when its bound of memory exceeds the capacity, else replayed,
//   and put back with its exact time. The first to come out with that is the fastest: no bound of the rest is below it.
//   A kind of layout that cannot be the plan any more, its bounds being above the plan's time, is not followed to its
//   end: then it is known how fast it can be at the most.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "planner/layout_bounds.h"
#include "planner/layout_replay.h"

namespace fivefold {

struct TimedLayout {
  Layout layout;
  double seconds = 0;  // predicted, or a bound
};

class LayoutExplorer {
 public:
  using Memory = LayoutReplay::Memory;
  // Which layouts are meant: asked of tp, cp and pp, and one ZeRO level or, negative, all.
  struct Group {
    std::function<bool(const Layout&)> has = [](const Layout&) { return true; };
    int zero = -1;
  };

  // REQUIRES: all outlive it.
  LayoutExplorer(PredictionMemo& memo, const LayoutSpace& space);

  bool empty() const { return splits_.empty(); }
  // When a search may end early: for what cannot take as little as `seconds`, replays of so many layers' microbatches
  // are enough.
  struct Patience {
    double seconds = std::numeric_limits<double>::infinity();
    int64_t replayed = 0;
  };
  // The fastest; when patience ended, the fastest of those that were replayed.
  struct Fastest {
    TimedLayout timed;
    double least = 0;  // no layout of the group that fits takes less; timed.seconds when that is the fastest
  };
  // Nothing: none of the group is legal and fits, or, where patience ended, none was found.
  std::optional<Fastest> fastest(const Group& group, Memory memory, const Patience& patience);
  // Of all legal layouts that fit.
  std::vector<TimedLayout> fastest_ones(size_t count);
  // All that may fit and take at most so long, by their bounds, which are given.
  std::vector<TimedLayout> within(double seconds);
  // The legal one that needs least, by replay of the few with the least bounds; nothing: the group is empty.
  std::optional<Layout> smallest(const Group& group);
  // Exact, of a legal layout that fits.
  std::optional<double> seconds(const Layout& layout) { return replay_.seconds(layout, Memory::kCounts); }

  int64_t num_bounds() const { return num_bounds_; }
  int64_t num_replays() const { return replay_.count(); }

 private:
  // kOrder: of a pipeline, whose order of computations is replayed before its shardings are looked at.
  enum class Open : uint8_t { kSchedule, kRecomputed, kOrder, kSharding, kNothing, kReplayed };
  struct Node {
    TimedLayout timed;
    Open open = Open::kSchedule;
  };
  // The layouts that a node stands for, one axis further, to `emit`.
  using Emit = std::function<void(const Node&)>;
  void open(const Node& node, const Group& group, Memory memory, const Emit& emit);
  void open_schedules(const Layout& split, const Emit& emit);
  void open_recomputed(const Layout& layout, const Emit& emit);
  void open_shardings(const Layout& layout, const Group& group, Memory memory, const Emit& emit);
  struct SizedLayout {
    Layout layout;
    int64_t bytes = 0;  // a bound
  };
  std::vector<SizedLayout> sizes(const Group& group);
  // With the layout's sharding, which `config` gets.
  int64_t least_bytes(ResolvedConfig& config, const std::vector<LayoutBounds::RankHeld>& held, const Layout& layout);
  void bound_splits();
  // Runs the queue until `take` wants no more of what comes out: with its exact time or, first, as a bound.
  void best_first(const Group& group, Memory memory, const std::function<bool(const Node&)>& take);

  PredictionMemo& memo_;
  const LayoutSpace& space_;
  PeakBytes peaks_;
  LayoutBounds bounds_;
  LayoutReplay replay_;
  std::vector<TimedLayout> splits_;
  bool bounded_ = false;  // splits_ have their bounds
  double makespan(const Layout& layout);

  std::map<Layout, std::vector<Node>> schedules_;  // of splits that were opened
  std::map<Layout, double> makespans_;             // of layouts without sharding
  int64_t num_bounds_ = 0;
};

}  // namespace fivefold
