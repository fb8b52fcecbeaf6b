// LinkTimes: seconds that a collective takes for the groups of one run: on the links of its hardware and, where the run
// imitates a cluster ([comm] simulate), on that cluster's. The formula is spec/network.h's. Immutable, thread-safe.
#pragma once

#include <array>
#include <vector>

#include "spec/network.h"
#include "spec/rank_grid.h"

namespace fivefold {

struct LinkSeconds {
  double seconds = 0;  // until the collective is complete: the slower of the two
  double moving = 0;   // of them, those in which the hardware itself moves bytes

  LinkSeconds operator+(const LinkSeconds& other) const { return {seconds + other.seconds, moving + other.moving}; }
};

class LinkTimes {
 public:
  // A CPU's ranks are threads of one machine: its own links are those of a node.
  LinkTimes(const HardwareSpec& hardware, const RankGrid& grid);

  // Of the slowest group of the kind; of a send, to the member that is farthest away. `bytes`: of the full tensor.
  LinkSeconds operator()(CollectiveKind kind, GroupKind group, double bytes) const;
  // Of a send from position `from` of a group to `to`, in the group where they are farthest apart.
  LinkSeconds send(GroupKind group, int from, int to, double bytes) const;

 private:
  struct Level {
    NetworkSpec network;
    std::array<GroupShape, kNumGroupKinds> shapes;  // the most spread-out group of each kind
  };

  // Of the slower level, whose groups have these shapes.
  LinkSeconds slower(CollectiveKind kind, const std::vector<GroupShape>& shapes, double bytes) const;

  RankGrid grid_;
  std::vector<Level> levels_;  // the hardware's, then the simulated
};

}  // namespace fivefold
