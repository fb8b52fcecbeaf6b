#include "planner/link_times.h"

#include <algorithm>
#include <limits>

namespace fivefold {
namespace {

// Over more nodes, or with fewer ports on one of them.
bool wider(const GroupShape& a, const GroupShape& b) {
  return a.nodes != b.nodes ? a.nodes > b.nodes : a.ranks_per_node < b.ranks_per_node;
}

GroupShape widest_shape(const NetworkSpec& network, const RankGrid& grid, GroupKind kind) {
  const GroupShape first = group_shape(network, grid.group(kind, 0));
  if (first.ranks == 1 || grid.world() <= network.devices_per_node) return first;
  GroupShape widest = first;
  std::vector<bool> seen(static_cast<size_t>(grid.world()));
  for (int rank = 0; rank < grid.world(); ++rank) {
    if (seen[static_cast<size_t>(rank)]) continue;
    const std::vector<int> members = grid.group(kind, rank);
    for (const int member : members) seen[static_cast<size_t>(member)] = true;
    const GroupShape shape = group_shape(network, members);
    if (wider(shape, widest)) widest = shape;
  }
  return widest;
}

}  // namespace

LinkTimes::Level LinkTimes::level(NetworkSpec network, const RankGrid& grid) {
  Level level{std::move(network), {}};
  for (int i = 0; i < kNumGroupKinds; ++i)
    level.shapes[static_cast<size_t>(i)] = widest_shape(level.network, grid, static_cast<GroupKind>(i));
  return level;
}

LinkTimes::LinkTimes(const HardwareSpec& hardware, const RankGrid& grid) {
  NetworkSpec own = network_of(hardware);
  if (hardware.device.cores > 0) own.devices_per_node = std::numeric_limits<int>::max();
  levels_.push_back(level(std::move(own), grid));
  if (hardware.simulated) levels_.push_back(level(*hardware.simulated, grid));
}

LinkSeconds LinkTimes::operator()(CollectiveKind kind, GroupKind group, double bytes) const {
  LinkSeconds result;
  for (const Level& level : levels_) {
    const double seconds =
        collective_cost(level.network, kind, level.shapes[static_cast<size_t>(group)], bytes).seconds();
    result.seconds = std::max(result.seconds, seconds);
    if (&level == &levels_.front()) result.moving = seconds;
  }
  return result;
}

}  // namespace fivefold
