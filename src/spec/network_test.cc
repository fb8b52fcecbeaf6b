#include "spec/network.h"

#include <gtest/gtest.h>

namespace fivefold {
namespace {

Figure stated(double value) { return {value, Provenance::kAssumed, "test"}; }

HardwareSpec named_hardware(const std::string& name) {
  const auto path = find_named_hardware(name);
  EXPECT_TRUE(path.ok());
  const auto hardware = read_hardware(*path);
  EXPECT_TRUE(hardware.ok());
  return *hardware;
}

// Nodes of two devices. A device has 1 GB/s in the node and 0.1 GB/s of the network.
NetworkSpec two_by_two() {
  NetworkSpec network{.name = "two-by-two", .devices_per_node = 2, .ports = 2, .node_link = {}, .network = {}};
  network.node_link.bytes_per_s = stated(1e9);
  network.node_link.latency_s = stated(1e-3);
  network.network.bytes_per_s = stated(1e8);
  network.network.latency_s = stated(1e-2);
  return network;
}

double seconds(const NetworkSpec& network, CollectiveKind kind, const std::vector<int>& members, double bytes) {
  return collective_cost(network, kind, group_shape(network, members), bytes).seconds();
}

TEST(Network, ShapeFollowsFromTheOrderOfRanks) {
  const NetworkSpec network = two_by_two();
  EXPECT_EQ(group_shape(network, {0, 1}), (GroupShape{.ranks = 2, .nodes = 1, .ranks_per_node = 2}));
  EXPECT_EQ(group_shape(network, {1, 2}), (GroupShape{.ranks = 2, .nodes = 2, .ranks_per_node = 1}));
  EXPECT_EQ(group_shape(network, {0, 2, 4, 6}), (GroupShape{.ranks = 4, .nodes = 4, .ranks_per_node = 1}));
  EXPECT_EQ(group_shape(network, {4, 5, 6, 7}), (GroupShape{.ranks = 4, .nodes = 2, .ranks_per_node = 2}));
  EXPECT_EQ(group_shape(network, {4, 5, 6}), (GroupShape{.ranks = 3, .nodes = 2, .ranks_per_node = 1}));
}

// 80 MB each. In the node 0.8 x 1 GB/s, across nodes 0.8 x 0.1 GB/s per member that a node has.
TEST(Network, TakesLatencyAndBytesOfTheGroupsLevel) {
  const NetworkSpec network = two_by_two();
  const double F = 80e6;
  using enum CollectiveKind;
  // Two ranks of a node: half of 80 MB, twice for an all-reduce, at 0.8 GB/s.
  EXPECT_NEAR(seconds(network, kAllReduce, {0, 1}, F), 2e-3 + 0.1, 1e-12);
  EXPECT_NEAR(seconds(network, kAllGather, {0, 1}, F), 1e-3 + 0.05, 1e-12);
  EXPECT_NEAR(seconds(network, kReduceScatter, {0, 1}, F), 1e-3 + 0.05, 1e-12);
  EXPECT_NEAR(seconds(network, kAllToAll, {0, 1}, F), 1e-3 + 0.05, 1e-12);
  EXPECT_NEAR(seconds(network, kBroadcast, {0, 1}, F), 1e-3 + 0.1, 1e-12);
  EXPECT_NEAR(seconds(network, kSend, {0, 1}, F), 1e-3 + 0.1, 1e-12);
  EXPECT_NEAR(seconds(network, kBarrier, {0, 1}, 0), 2e-3, 1e-12);
  // The same with a rank each on two nodes: 0.08 GB/s.
  EXPECT_NEAR(seconds(network, kAllReduce, {0, 2}, F), 2e-2 + 1.0, 1e-12);
  EXPECT_NEAR(seconds(network, kSend, {1, 2}, F), 1e-2 + 1.0, 1e-12);
  EXPECT_NEAR(seconds(network, kBarrier, {0, 2}, 0), 2e-2, 1e-12);
  // Two nodes of two: a ring on two ports at 0.16 GB/s; log2 4 = 2 levels of the tree.
  EXPECT_NEAR(seconds(network, kAllGather, {0, 1, 2, 3}, F), 2e-2 + 60e6 / 160e6, 1e-12);
  EXPECT_NEAR(seconds(network, kAllReduce, {0, 1, 2, 3}, F), 4e-2 + 120e6 / 160e6, 1e-12);
  EXPECT_NEAR(seconds(network, kBroadcast, {0, 1, 2, 3}, F), 2e-2 + 80e6 / 160e6, 1e-12);
  // A member sends a quarter to each of two ranks of the other node, on its own port.
  EXPECT_NEAR(seconds(network, kAllToAll, {0, 1, 2, 3}, F), 2e-2 + 40e6 / 80e6, 1e-12);
  EXPECT_EQ(seconds(network, kAllReduce, {3}, F), 0);
}

// Rings of n - 1 steps where a step is stated.
TEST(Network, RingStepsGrowWithTheRanks) {
  NetworkSpec network = two_by_two();
  network.network.ring_step_s = stated(5e-3);
  using enum CollectiveKind;
  EXPECT_NEAR(seconds(network, kAllGather, {0, 2, 4, 6}, 0), 15e-3, 1e-12);
  EXPECT_NEAR(seconds(network, kReduceScatter, {0, 2, 4, 6}, 0), 15e-3, 1e-12);
  EXPECT_NEAR(seconds(network, kAllReduce, {0, 2, 4, 6}, 0), 4e-2, 1e-12);
  EXPECT_NEAR(seconds(network, kAllGather, {0, 1}, 0), 1e-3, 1e-12);
}

// A ring does not leave a node faster than it runs through it.
TEST(Network, TheNodesLinksBoundARingAcrossNodes) {
  NetworkSpec network = two_by_two();
  network.node_link.bytes_per_s = stated(1.5e8);
  using enum CollectiveKind;
  EXPECT_NEAR(seconds(network, kAllGather, {0, 1, 2, 3}, 80e6), 2e-2 + 60e6 / 120e6, 1e-12);
  EXPECT_NEAR(seconds(network, kAllToAll, {0, 1, 2, 3}, 80e6), 2e-2 + 40e6 / 80e6, 1e-12);
  EXPECT_NEAR(seconds(network, kAllGather, {1, 2}, 80e6), 1e-2 + 40e6 / 80e6, 1e-12);
}

// Between two measured sizes half way; below the first the first; beyond the last at its rate. The split into latency
// and bytes adds up to the measured time.
TEST(Network, TakesMeasuredTimesWhereThereAreSome) {
  NetworkSpec network = two_by_two();
  network.node_link.collectives.points = {{CollectiveKind::kAllReduce, 2, 3000, 0.5},
                                          {CollectiveKind::kAllReduce, 2, 1000, 0.3},
                                          {CollectiveKind::kAllReduce, 64, 1000, 7.0}};
  EXPECT_NEAR(seconds(network, CollectiveKind::kAllReduce, {0, 1}, 2000), 0.4, 1e-12);
  EXPECT_NEAR(seconds(network, CollectiveKind::kAllReduce, {0, 1}, 8), 0.3, 1e-12);
  EXPECT_NEAR(seconds(network, CollectiveKind::kAllReduce, {0, 1}, 6000), 1.0, 1e-12);
  const CollectiveCost cost = collective_cost(network, CollectiveKind::kAllReduce, group_shape(network, {0, 1}), 2000);
  EXPECT_NEAR(cost.latency_s, 0.3, 1e-12);
  EXPECT_NEAR(cost.bytes, 0.1 * 0.8e9, 1);
  EXPECT_NEAR(seconds(network, CollectiveKind::kAllGather, {0, 1}, 80e6), 1e-3 + 0.05, 1e-12);
}

// 0.8 of 450 GB/s in the node, the latency of a tree; across nodes a ring over 8 ports of 50 GB/s, 38 us a step, and a
// tree over one port.
TEST(Network, NamedClustersUseBothLevels) {
  HardwareSpec h = named_hardware("aws-p5");
  h.node_link.latency_s.value = h.network.latency_s.value = 1e-6;
  const NetworkSpec network = network_of(h);
  const auto cost = [&](CollectiveKind kind, GroupShape shape, double bytes) {
    return collective_cost(network, kind, shape, bytes).seconds();
  };
  EXPECT_NEAR(cost(CollectiveKind::kAllGather, {8, 1, 8}, 8e9), 3 * 1e-6 + 7e9 / (0.8 * 450e9), 1e-9);
  EXPECT_NEAR(cost(CollectiveKind::kAllGather, {16, 2, 8}, 16e9), 15 * 38e-6 + 15e9 / (0.8 * 400e9), 1e-9);
  EXPECT_NEAR(cost(CollectiveKind::kAllReduce, {4, 4, 1}, 4e9), 4 * 1e-6 + 2 * 3e9 / (0.8 * 50e9), 1e-9);
}

// Published all-gathers of 256 MiB on nodes of 8 H100 (GB/s of the tensor x (n-1)/n): 184.6, 119.0, 69.0, 55.0, 28.0
// and 11.0 on 2 to 64 nodes. Within 40 % each.
TEST(Network, FollowsPublishedAllGathers) {
  const NetworkSpec network = network_of(named_hardware("aws-p5"));
  for (const auto& [nodes, gigabytes_per_s] :
       {std::pair{2, 184.6}, {4, 119.0}, {8, 69.0}, {16, 55.0}, {32, 28.0}, {64, 11.0}}) {
    const int ranks = 8 * nodes;
    const double s = collective_cost(network, CollectiveKind::kAllGather, {ranks, nodes, 8}, 268435456).seconds();
    const double predicted = 268435456.0 * (ranks - 1) / ranks / s / 1e9;
    EXPECT_NEAR(predicted / gigabytes_per_s, 1, 0.4) << ranks << " ranks: " << predicted;
  }
}

TEST(Network, OneNodeHoldsNoMoreRanksThanDevices) {
  const NetworkSpec node = network_of(named_hardware("h100-sxm-80gb"));
  EXPECT_TRUE(check_num_ranks(node, 8).ok());
  ASSERT_FALSE(check_num_ranks(node, 9).ok());
  EXPECT_EQ(check_num_ranks(node, 9).error().message(),
            "comm.simulate: h100-sxm-80gb is one node of 8 devices without a network, the run has 9 ranks (use "
            "8 ranks or fewer, or a cluster, for example simulate = dgx-h100)");
  EXPECT_TRUE(check_num_ranks(network_of(named_hardware("aws-p5")), 512).ok());
}

TEST(Network, PortsOfANodeAreThoseOfTheFile) {
  EXPECT_EQ(network_of(named_hardware("aws-p5")).ports, 8);
  EXPECT_EQ(network_of(named_hardware("ethernet-100g-4xl40s")).ports, 1);
  EXPECT_EQ(network_of(named_hardware("aws-p4d")).ports, 4);
}

}  // namespace
}  // namespace fivefold
