// Network: what a collective or a send takes on two levels of links, those within a node and those between nodes. The
// one formula: the planner predicts with it, and `local` imitates a cluster by it (comm/link_simulation.h). Derivation
// and a worked number: docs/communication.md#links. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "spec/enums.h"
#include "spec/hardware.h"

namespace fivefold {

// A large collective / the links' published rate where the link's file says nothing: assumed.
inline constexpr double kLinkOfBandwidth = 0.8;

// Links of a hardware file. Rank r of a run is on node r / devices_per_node.
NetworkSpec network_of(const HardwareSpec& hardware);

// Errors ("comm.simulate"): more ranks than a node's devices, and nothing that joins nodes.
Status check_num_ranks(const NetworkSpec& network, int num_ranks);

// How the members of a group lie on nodes.
struct GroupShape {
  int ranks = 1;
  int nodes = 1;           // that have at least one of them
  int ranks_per_node = 1;  // on the node that has the fewest

  bool operator==(const GroupShape&) const = default;
};
// `members`: world ranks. REQUIRES: at least one.
GroupShape group_shape(const NetworkSpec& network, const std::vector<int>& members);

// latency_s, then `bytes` at `bytes_per_s`: through each member's own link in a node, or out of each node (as many into
// it) on its members' ports.
struct CollectiveCost {
  double latency_s = 0;
  double bytes = 0;
  double bytes_per_s = 1;     // when every device of the node uses its share of the links
  bool across_nodes = false;  // the network's links, not the node's

  double seconds() const { return latency_s + bytes / bytes_per_s; }
};
// `bytes`: of the full tensor, as in CollectivePoint: of an all_to_all, what one rank sends and keeps. Links without
// figures take no time. A group of one rank costs nothing. A barrier is an all_reduce of 0
// bytes, a send goes from one member to another that is as far away as the group spreads.
CollectiveCost collective_cost(const NetworkSpec& network, CollectiveKind kind, const GroupShape& shape, double bytes);

}  // namespace fivefold
