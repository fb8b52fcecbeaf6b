#include "planner/link_times.h"

#include <gtest/gtest.h>

#include "planner/planner_testing.h"

namespace fivefold::test {
namespace {

// 0.8 x 1.25 GB/s in a node of two, 0.8 x 0.125 GB/s a device between nodes.
HardwareSpec two_by_two() {
  HardwareSpec h;
  h.name = "two-by-two";
  h.devices_per_node = 2;
  h.node_link.bytes_per_s.value = 1.25e9;
  h.node_link.latency_s.value = 1e-3;
  h.network.bytes_per_s.value = 1.25e8;
  h.network.latency_s.value = 1e-2;
  return h;
}

// Two cores that copy at 0.8 x 2.5 GB/s = 2 GB/s.
HardwareSpec laptop() {
  HardwareSpec h;
  h.device.cores = 2;
  h.node_link.bytes_per_s.value = 2.5e9;
  h.node_link.latency_s.value = 1e-4;
  return h;
}

RankGrid grid(int dp, int shard_size) { return RankGrid::create({.dp = dp, .shard_size = shard_size}).value(); }

TEST(LinkTimes, TheSlowestGroupCounts) {
  // Shards of three ranks on nodes of two: {0, 1, 2} is on two nodes, with one rank on one of them.
  const LinkTimes links(two_by_two(), grid(6, 3));
  EXPECT_NEAR(links(CollectiveKind::kAllGather, GroupKind::kShard, 3e8).seconds, 2e-2 + 2e8 / 1e8, 1e-9);
  // {0, 3}, {1, 4} and {2, 5} are on two nodes each.
  EXPECT_NEAR(links(CollectiveKind::kAllReduce, GroupKind::kReplicate, 1e8).seconds, 2e-2 + 1e8 / 1e8, 1e-9);
  // {0, 1, 2, 3}, {4, 5, 6, 7}: shards of a node of four; the first group of two alone would be in one node.
  HardwareSpec four = two_by_two();
  four.devices_per_node = 4;
  EXPECT_NEAR(LinkTimes(four, grid(8, 4))(CollectiveKind::kAllGather, GroupKind::kShard, 4e8).seconds, 2e-3 + 3e8 / 1e9,
              1e-9);
  // Nodes of three: {0, 1} is in one, {2, 3} is not.
  HardwareSpec three = two_by_two();
  three.devices_per_node = 3;
  EXPECT_NEAR(LinkTimes(three, grid(4, 2))(CollectiveKind::kAllGather, GroupKind::kShard, 2e8).seconds,
              1e-2 + 1e8 / 1e8, 1e-9);
}

// Four stages on two nodes: of three hops only the second leaves a node.
TEST(LinkTimes, ASendTakesTheLinkBetweenItsRanks) {
  const RankGrid stages = RankGrid::create({.pp = 4}).value();
  const LinkTimes links(two_by_two(), stages);
  EXPECT_NEAR(links.send(GroupKind::kPp, 0, 1, 1e8).seconds, 1e-3 + 1e8 / 1e9, 1e-9);
  EXPECT_NEAR(links.send(GroupKind::kPp, 2, 1, 1e8).seconds, 1e-2 + 1e8 / 1e8, 1e-9);
  EXPECT_NEAR(links.send(GroupKind::kPp, 3, 2, 1e8).seconds, 1e-3 + 1e8 / 1e9, 1e-9);
  // Three ranks a stage: stages 0 and 1 are 0, 1, 2 and 3, 4, 5, and 0 -> 3, 1 -> 4, 2 -> 5 leave their nodes, but on
  // nodes of four 0 -> 3 does not: the others count.
  HardwareSpec four = two_by_two();
  four.devices_per_node = 4;
  const LinkTimes wide(four, RankGrid::create({.dp = 3, .pp = 2}).value());
  EXPECT_NEAR(wide.send(GroupKind::kPp, 0, 1, 1e8).seconds, 1e-2 + 1e8 / 1e8, 1e-9);
}

// On a CPU the machine is one node for any number of ranks.
TEST(LinkTimes, RanksOfACpuShareAMachine) {
  const LinkTimes links(laptop(), grid(4, 4));
  const LinkSeconds gather = links(CollectiveKind::kAllGather, GroupKind::kShard, 4e8);
  EXPECT_NEAR(gather.seconds, 2e-4 + 3e8 / 2e9, 1e-9);
  EXPECT_EQ(gather.moving, gather.seconds);
}

// The call ends when both the machine has copied and the imitated cluster would be through.
TEST(LinkTimes, ASimulatedNetworkCountsWhereItIsSlower) {
  HardwareSpec h = laptop();
  h.simulated = network_of(two_by_two());
  const LinkTimes links(h, grid(4, 2));
  const LinkSeconds inside = links(CollectiveKind::kAllGather, GroupKind::kShard, 2e8);
  EXPECT_NEAR(inside.seconds, 1e-3 + 1e8 / 1e9, 1e-9);
  EXPECT_NEAR(inside.moving, 1e-4 + 1e8 / 2e9, 1e-9);
  const LinkSeconds across = links(CollectiveKind::kAllReduce, GroupKind::kReplicate, 1e8);
  EXPECT_NEAR(across.seconds, 2e-2 + 1e8 / 1e8, 1e-9);
  EXPECT_NEAR(across.moving, 2e-4 + 1e8 / 2e9, 1e-9);
  h.simulated->node_link.bytes_per_s.value = 1e15;
  h.simulated->node_link.latency_s.value = 1e-9;
  const LinkSeconds faster = LinkTimes(h, grid(4, 2))(CollectiveKind::kAllGather, GroupKind::kShard, 2e8);
  EXPECT_EQ(faster.seconds, faster.moving);
}

// Waiting for a simulated link takes no core from computing: the step gets longer by what is exposed alone.
TEST(LinkTimes, SimulatedTimeDoesNotSlowComputing) {
  const ModelSpec model = named_model("demo-tiny");
  const Inventory inventory = build_inventory(model);
  const ResolvedConfig config = resolved(model, {.dp = 2, .zero = 3, .sequence = 64});
  HardwareSpec h = laptop();
  h.device.peak_flops_per_s.fp32.value = h.device.peak_flops_per_s.bf16.value = 1e8;
  h.device.memory_bytes_per_s.value = 1e10;
  h.device.overlap_share.value = 0.5;
  const StepCost plain = predict_cost(model, inventory, config, h);
  h.simulated = network_of(two_by_two());
  const StepCost simulated = predict_cost(model, inventory, config, h);
  EXPECT_GT(plain[TimePart::kOverlapSlowdown], 0);
  EXPECT_GT(simulated.communication_seconds, 5 * plain.communication_seconds);
  EXPECT_LT(simulated[TimePart::kOverlapSlowdown], 1.05 * plain[TimePart::kOverlapSlowdown]);
  EXPECT_GT(simulated[TimePart::kExposedCommunication], plain[TimePart::kExposedCommunication]);
}

}  // namespace
}  // namespace fivefold::test
