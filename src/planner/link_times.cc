#include "planner/link_times.h"

#include <algorithm>
#include <limits>

namespace fivefold {
namespace {

// Over more nodes, or with fewer ports on one of them.
bool wider(const GroupShape& a, const GroupShape& b) {
  return a.nodes != b.nodes ? a.nodes > b.nodes : a.ranks_per_node < b.ranks_per_node;
}

// The widest shape over all groups of the kind, of what `part` takes of a group's members.
template <typename Part>
GroupShape widest_shape(const NetworkSpec& network, const RankGrid& grid, GroupKind kind, const Part& part) {
  GroupShape widest = group_shape(network, part(grid.group(kind, 0)));
  if (widest.ranks == 1 || grid.world() <= network.devices_per_node) return widest;
  std::vector<bool> seen(static_cast<size_t>(grid.world()));
  for (int rank = 0; rank < grid.world(); ++rank) {
    if (seen[static_cast<size_t>(rank)]) continue;
    const std::vector<int> members = grid.group(kind, rank);
    for (const int member : members) seen[static_cast<size_t>(member)] = true;
    const GroupShape shape = group_shape(network, part(members));
    if (wider(shape, widest)) widest = shape;
    if (widest.nodes == widest.ranks) break;  // nothing is wider
  }
  return widest;
}

}  // namespace

LinkTimes::LinkTimes(const HardwareSpec& hardware, const RankGrid& grid) : grid_(grid) {
  NetworkSpec own = network_of(hardware);
  if (hardware.device.cores > 0) own.devices_per_node = std::numeric_limits<int>::max();
  levels_.push_back({std::move(own), {}});
  if (hardware.simulated) levels_.push_back({*hardware.simulated, {}});
  const auto all = [](const std::vector<int>& members) { return members; };
  for (Level& level : levels_)
    for (int i = 0; i < kNumGroupKinds; ++i)
      level.shapes[static_cast<size_t>(i)] = widest_shape(level.network, grid, static_cast<GroupKind>(i), all);
}

LinkSeconds LinkTimes::slower(CollectiveKind kind, const std::vector<GroupShape>& shapes, double bytes) const {
  LinkSeconds result;
  for (size_t i = 0; i < levels_.size(); ++i) {
    const double seconds = collective_cost(levels_[i].network, kind, shapes[i], bytes).seconds();
    result.seconds = std::max(result.seconds, seconds);
    if (i == 0) result.moving = seconds;
  }
  return result;
}

LinkSeconds LinkTimes::operator()(CollectiveKind kind, GroupKind group, double bytes) const {
  std::vector<GroupShape> shapes;
  for (const Level& level : levels_) shapes.push_back(level.shapes[static_cast<size_t>(group)]);
  return slower(kind, shapes, bytes);
}

LinkSeconds LinkTimes::send(GroupKind group, int from, int to, double bytes) const {
  const auto pair = [from, to](const std::vector<int>& members) -> std::vector<int> {
    return {members[static_cast<size_t>(from)], members[static_cast<size_t>(to)]};
  };
  std::vector<GroupShape> shapes;
  for (const Level& level : levels_) shapes.push_back(widest_shape(level.network, grid_, group, pair));
  return slower(CollectiveKind::kSend, shapes, bytes);
}

}  // namespace fivefold
