#include "planner/layout_explorer.h"

#include <algorithm>
#include <queue>

#include "planner/capacity.h"

namespace fivefold {
namespace {

void shard(ResolvedConfig& config, const Layout& layout) {
  config.config.parallel.zero = layout.zero;
  config.config.parallel.shard_size = config.degrees.shard_size = layout.shard_size;
}

}  // namespace

LayoutExplorer::LayoutExplorer(PredictionMemo& memo, const LayoutSpace& space)
    : memo_(memo), space_(space), peaks_(memo), bounds_(memo, peaks_), replay_(memo, peaks_, space) {
  for (const Layout& split : space.splits()) splits_.push_back({split, 0});
}

void LayoutExplorer::bound_splits() {
  if (bounded_) return;
  bounded_ = true;
  for (TimedLayout& split : splits_) split.seconds = bounds_.split_seconds(*space_.resolved(split.layout));
  num_bounds_ += std::ssize(splits_);
}

void LayoutExplorer::open_schedules(const Layout& split, const Emit& emit) {
  const auto [found, fresh] = schedules_.try_emplace(split);
  if (fresh) {
    for (const Layout& layout : space_.schedules(split)) {
      const ResolvedConfig config = *space_.resolved(layout);
      found->second.push_back({{layout, bounds_.seconds_unsharded(config, bounds_.work(config))}, Open::kRecomputed});
      ++num_bounds_;
    }
  }
  for (const Node& node : found->second) emit(node);
}

void LayoutExplorer::open_recomputed(const Layout& layout, const Emit& emit) {
  ResolvedConfig config = *space_.resolved(layout);
  const int64_t longest = *std::max_element(config.layers_per_chunk.begin(), config.layers_per_chunk.end());
  for (const Recomputed& recomputed : space_.recomputed(longest)) {
    Layout next = layout;
    next.every = recomputed.every;
    next.dropped = recomputed.dropped;
    config.config.recompute = recomputed.config();
    emit({{next, bounds_.seconds_unsharded(config, bounds_.work(config))},
          next.pp > 1 ? Open::kOrder : Open::kSharding});
    ++num_bounds_;
  }
}

double LayoutExplorer::makespan(const Layout& layout) {
  if (layout.pp == 1) return 0;
  const auto [found, fresh] = makespans_.try_emplace(layout, 0);
  if (fresh) found->second = bounds_.makespan(*space_.resolved(layout));
  return found->second;
}

int64_t LayoutExplorer::least_bytes(ResolvedConfig& config, const std::vector<LayoutBounds::RankHeld>& held,
                                    const Layout& layout) {
  shard(config, layout);
  return bounds_.bytes(config, held) +
         outside_tensors(memo_.model(), memo_.inventory(), config, memo_.hardware()).bytes();
}

void LayoutExplorer::open_shardings(const Layout& layout, const Group& group, Memory memory, const Emit& emit) {
  std::optional<ResolvedConfig> config = space_.resolved(layout);
  if (!config) return;
  const std::vector<LayoutBounds::RankWork> work = bounds_.work(*config);
  std::vector<LayoutBounds::RankHeld> held, states;
  for (const LayoutBounds::RankWork& rank : work) states.push_back({.stages = rank.stages});
  const int64_t capacity = planned_capacity(*config, memo_.hardware());
  for (const auto& [zero, shards] : space_.shardings(layout)) {
    if (group.zero >= 0 && zero != group.zero) continue;
    Layout next = layout;
    next.zero = zero;
    next.shard_size = shards;
    ++num_bounds_;
    if (memory == Memory::kCounts) {
      if (least_bytes(*config, states, next) > capacity) continue;
      // Only now: a V's activations take its schedule.
      if (held.empty()) held = bounds_.held(*config);
      if (least_bytes(*config, held, next) > capacity) continue;
    }
    shard(*config, next);
    emit({{next, bounds_.seconds(*config, work, makespan(layout))}, Open::kNothing});
  }
}

void LayoutExplorer::open(const Node& node, const Group& group, Memory memory, const Emit& emit) {
  const Layout& layout = node.timed.layout;
  switch (node.open) {
    case Open::kSchedule:
      return open_schedules(layout, emit);
    case Open::kRecomputed:
      return open_recomputed(layout, emit);
    case Open::kOrder:
      return emit({{layout, std::max(node.timed.seconds, makespan(layout))}, Open::kSharding});
    case Open::kSharding:
      return open_shardings(layout, group, memory, emit);
    case Open::kNothing:
      if (const std::optional<double> seconds = replay_.seconds(layout, memory))
        emit({{layout, *seconds}, Open::kReplayed});
      return;
    case Open::kReplayed:
      return;
  }
}

void LayoutExplorer::best_first(const Group& group, Memory memory, const std::function<bool(const Node&)>& take) {
  struct Entry {
    Node node;
    int64_t number;
    // Of equal times the exact one first, then the one that was found first.
    bool operator<(const Entry& other) const {
      if (node.timed.seconds != other.node.timed.seconds) return node.timed.seconds > other.node.timed.seconds;
      if (node.open != other.node.open) return node.open < other.node.open;
      return number > other.number;
    }
  };
  bound_splits();
  std::priority_queue<Entry> queue;
  int64_t number = 0;
  for (const TimedLayout& split : splits_)
    if (group.has(split.layout)) queue.push({{split, Open::kSchedule}, number++});
  while (!queue.empty()) {
    const Node node = queue.top().node;
    queue.pop();
    if (!take(node)) return;
    open(node, group, memory, [&](const Node& next) { queue.push({next, number++}); });
  }
}

std::optional<LayoutExplorer::Fastest> LayoutExplorer::fastest(const Group& group, Memory memory,
                                                               const Patience& patience) {
  std::optional<Fastest> found;
  int64_t replayed = 0;
  best_first(group, memory, [&](const Node& node) {
    if (node.open == Open::kReplayed) {
      found = Fastest{node.timed, node.timed.seconds};
      return false;
    }
    if (node.timed.seconds <= patience.seconds) return true;
    const bool ends = replayed >= patience.replayed && (found || patience.replayed == 0);
    if (ends && found) found->least = node.timed.seconds;
    if (ends || node.open != Open::kNothing) return !ends;
    const Layout& layout = node.timed.layout;
    const int64_t microbatches = layout.pp > 1 ? space_.global_batch() / (space_.dp(layout) * layout.micro) : 3;
    replayed += microbatches * std::ssize(memo_.model().layers);
    const std::optional<double> seconds = replay_.seconds(layout, memory);
    if (seconds && (!found || *seconds < found->timed.seconds)) found = Fastest{{layout, *seconds}, 0};
    return true;
  });
  if (found && found->least == 0) found->least = found->timed.seconds;
  return found;
}

std::vector<TimedLayout> LayoutExplorer::fastest_ones(size_t count) {
  std::vector<TimedLayout> all;
  best_first({}, Memory::kCounts, [&](const Node& node) {
    if (node.open == Open::kReplayed) all.push_back(node.timed);
    return all.size() < count;
  });
  return all;
}

std::vector<TimedLayout> LayoutExplorer::within(double seconds) {
  std::vector<TimedLayout> all;
  const Emit descend = [&](const Node& node) {
    if (node.timed.seconds > seconds) return;
    if (node.open == Open::kNothing)
      all.push_back(node.timed);
    else
      open(node, {}, Memory::kCounts, descend);
  };
  bound_splits();
  for (const TimedLayout& split : splits_) descend({split, Open::kSchedule});
  return all;
}

std::vector<LayoutExplorer::SizedLayout> LayoutExplorer::sizes(const Group& group) {
  std::vector<SizedLayout> all;
  // Activations grow with the microbatch; a single one a step keeps its gradients in the compute type.
  int64_t micro = 0;
  for (const TimedLayout& split : splits_)
    if (group.has(split.layout)) micro = micro == 0 ? split.layout.micro : std::min(micro, split.layout.micro);
  for (const TimedLayout& split : splits_) {
    const int64_t rows = space_.global_batch() / space_.dp(split.layout);
    if (!group.has(split.layout) || (split.layout.micro > micro && split.layout.micro < rows)) continue;
    for (Layout layout : space_.schedules(split.layout)) {
      const ResolvedConfig plain = *space_.resolved(layout);
      const int64_t longest = *std::max_element(plain.layers_per_chunk.begin(), plain.layers_per_chunk.end());
      for (const Recomputed& recomputed : space_.recomputed(longest)) {
        layout.every = recomputed.every;
        layout.dropped = recomputed.dropped;
        layout.zero = 0;
        layout.shard_size = 1;
        std::optional<ResolvedConfig> config = space_.resolved(layout);
        if (!config) continue;
        const std::vector<LayoutBounds::RankHeld> held = bounds_.held(*config);
        for (const auto& [zero, shards] : space_.shardings(layout)) {
          if (group.zero >= 0 && zero != group.zero) continue;
          layout.zero = zero;
          layout.shard_size = shards;
          all.push_back({layout, least_bytes(*config, held, layout)});
        }
      }
    }
  }
  return all;
}

std::optional<Layout> LayoutExplorer::smallest(const Group& group) {
  constexpr size_t kReplayed = 16;
  std::vector<SizedLayout> all = sizes(group);
  std::stable_sort(all.begin(), all.end(),
                   [](const SizedLayout& a, const SizedLayout& b) { return a.bytes < b.bytes; });
  std::optional<Layout> best;
  int64_t least = 0;
  size_t replayed = 0;
  for (const SizedLayout& sized : all) {
    if (best && (sized.bytes >= least || replayed == kReplayed)) break;
    const std::optional<int64_t> peak = replay_.peak(sized.layout);
    if (!peak) continue;
    ++replayed;
    if (best && *peak >= least) continue;
    best = sized.layout;
    least = *peak;
  }
  return best;
}

}  // namespace fivefold
