#include "planner/communication_times.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "planner/planner_testing.h"

namespace fivefold::test {
namespace {

const CommunicationTime& of(const std::vector<CommunicationTime>& times, GroupKind group, Purpose purpose) {
  static const CommunicationTime none;
  for (const CommunicationTime& time : times)
    if (time.group == group && time.purpose == purpose) return time;
  ADD_FAILURE() << "no " << to_string(group) << " " << to_string(purpose);
  return none;
}

// Calls at [0, 4) and [4, 10), waits at [1, 3) and [3.5, 6): 2 + 0.5 s of the first and 2 s of the second are exposed.
TEST(CommunicationTally, ExposesWhatOverlapsWaits) {
  CommunicationTally tally;
  tally.flight(GroupKind::kShard, Purpose::kGradients, 0, 4);
  tally.flight(GroupKind::kShard, Purpose::kParameters, 4, 10);
  tally.wait(1, 3);
  tally.wait(3.5, 6);
  const auto times = tally.times(10);
  EXPECT_EQ(times.size(), 2u);
  EXPECT_DOUBLE_EQ(of(times, GroupKind::kShard, Purpose::kGradients).seconds, 4);
  EXPECT_DOUBLE_EQ(of(times, GroupKind::kShard, Purpose::kGradients).exposed, 2.5);
  EXPECT_DOUBLE_EQ(of(times, GroupKind::kShard, Purpose::kParameters).hidden(), 4);
}

// A call counts in the step in which it ends, with what was waited for it in the step before.
TEST(CommunicationTally, CountsACallWhereItEnds) {
  CommunicationTally tally;
  tally.flight(GroupKind::kShard, Purpose::kParameters, 0, 4);
  tally.flight(GroupKind::kShard, Purpose::kParameters, 8, 12);
  tally.within(GroupKind::kTp, Purpose::kActivations, 3, 1);
  tally.wait(7, 9);
  EXPECT_DOUBLE_EQ(of(tally.times(10), GroupKind::kShard, Purpose::kParameters).seconds, 4);
  tally.restart(10);
  const auto times = tally.times(20);
  ASSERT_EQ(times.size(), 1u);
  EXPECT_DOUBLE_EQ(times[0].seconds, 4);
  EXPECT_DOUBLE_EQ(times[0].exposed, 1);
}

// A GPU of 1 Gflop/s for everything on links of a second a call.
HardwareSpec slow_links(int devices_per_node) {
  HardwareSpec h = named_hardware("dgx-h100");
  h.devices_per_node = devices_per_node;
  h.device.peak_flops_per_s.bf16.value = 1e9;
  h.node_link.latency_s.value = 1.0;
  h.node_link.ring_step_s.value = 0;
  h.node_link.bytes_per_s.value = 1e18;
  return h;
}

std::vector<CommunicationTime> communication(const std::vector<std::string>& changes, const HardwareSpec& hardware,
                                             double* exposed = nullptr, int pipeline_rank = 0) {
  const ModelSpec model = named_model("demo-tiny");
  const Inventory inventory = build_inventory(model);
  RunConfig config;
  config.batch.sequence = 64;
  config.precision.compute = ComputeKind::kBf16;
  for (const std::string& change : changes) {
    if (change == "tp") config.parallel.tp = 2;
    if (change == "sp") config.parallel.sp = true;
    if (change == "dp") config.parallel.dp = 2;
    if (change == "zero3") config.parallel.zero = 3;
    if (change == "pp") config.parallel.pp = 2;
    if (change == "m4") config.batch.global = 4 * config.parallel.dp;
  }
  const ResolvedConfig legal = resolve(config, model).value();
  const StepCost cost = predict_cost(model, inventory, legal, hardware);
  if (exposed) *exposed = cost[TimePart::kExposedCommunication] + cost[TimePart::kBubble];
  return predict_communication(model, inventory, legal, hardware)[static_cast<size_t>(pipeline_rank)];
}

// Sequence parallelism of demo-tiny's layers over two ranks, calls of one second that no product of microseconds hides:
// per layer 4 calls forward, 2 of activations (gathers again) and 4 of gradients backward; the embedding adds one each
// way, the head a gather of activations and a reduction. Nothing is hidden but what the products take.
TEST(CommunicationTimes, AddUpToTheCallsOfTheStep) {
  HardwareSpec fast = slow_links(8);
  fast.device.peak_flops_per_s.bf16.value = 1e15;
  double waits = 0;
  const auto times = communication({"tp", "sp"}, fast, &waits);
  const auto layers = static_cast<double>(named_model("demo-tiny").layers.size());
  EXPECT_NEAR(of(times, GroupKind::kTp, Purpose::kActivations).seconds, 6 * layers + 2, 1e-6);
  EXPECT_NEAR(of(times, GroupKind::kTp, Purpose::kActivationGradients).seconds, 4 * layers + 2, 1e-6);
  double exposed = 0;
  for (const CommunicationTime& time : times) exposed += time.exposed;
  EXPECT_NEAR(exposed, waits, 1e-6 * waits);
}

// Whatever the layout: what is exposed is what the step waits for, and nothing is exposed for longer than it takes. The
// step's waits are those of the stage that waits least for the other; a pipeline's stage may wait for what it gets
// while what it sends is on its way too, and both are then exposed.
TEST(CommunicationTimes, ExposedIsWhatTheStepWaitsFor) {
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"dp", "zero3"}, {"dp"}, {"tp"}, {"dp", "zero3", "m4"}, {"tp", "pp", "m4"}}) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    double waits = 0, nearest = std::numeric_limits<double>::infinity();
    const int stages = std::find(layout.begin(), layout.end(), "pp") == layout.end() ? 1 : 2;
    for (int stage = 0; stage < stages; ++stage) {
      const auto times = communication(layout, slow_links(8), &waits, stage);
      double exposed = 0;
      for (const CommunicationTime& time : times) {
        EXPECT_LE(time.exposed, time.seconds * (1 + 1e-9));
        exposed += time.exposed;
      }
      if (std::abs(exposed - waits) < std::abs(nearest - waits)) nearest = exposed;
    }
    EXPECT_GT(waits, 0);
    if (stages == 1)
      EXPECT_NEAR(nearest, waits, 1e-6 * waits);
    else
      EXPECT_GE(nearest, waits * (1 - 1e-6));
  }
}

}  // namespace
}  // namespace fivefold::test
