#include "planner/step_replay.h"

#include "planner/planner_testing.h"
#include "schedule/generate.h"

namespace fivefold::test {
namespace {

// `p` stages of one layer each; embedding, head and optimizer take no time.
class Replay : public ::testing::Test {
 protected:
  std::vector<Program> programs(ScheduleKind kind, int p, int m) {
    model_.layers.assign(static_cast<size_t>(p), model_.layers[0]);
    model_.tied_embeddings = false;
    inventory_ = build_inventory(model_);
    const Schedule schedule = generate(kind, p, 1, m).value();
    const std::vector<StageUnits> stages = stage_units(std::vector<int64_t>(static_cast<size_t>(p), 1));
    std::vector<Program> programs;
    for (int rank = 0; rank < p; ++rank)
      programs.push_back(lower(schedule, inventory_,
                               {.sharding = {},
                                .pipeline_rank = rank,
                                .chunks = {stages[static_cast<size_t>(rank)]},
                                .peers = {{rank - 1, rank + 1 < p ? rank + 1 : -1}}}));
    return programs;
  }
  // Of each layer; `transfer` between any two ranks.
  StepTimes times(int p, double forward, double input, double weight, double transfer = 0) const {
    StepTimes times = no_step_times(inventory_.num_units(), p);
    for (int unit = 1; unit < inventory_.head(); ++unit) {
      UnitSeconds& layer = times.units[static_cast<size_t>(unit)];
      layer.forward = forward;
      layer.backward_input = input;
      layer.backward_weight = weight;
      layer.backward = input + weight;
    }
    for (auto& of_sender : times.transfers.neighbours) of_sender.fill({transfer, transfer});
    return times;
  }

  ModelSpec model_ = named_model("demo-tiny");
  Inventory inventory_;
};

// docs/schedules.md: (p - 1)(F + B + W) beside m (F + B + W) of computing.
TEST_F(Replay, OneForwardOneBackwardHasItsBubble) {
  const std::vector<Program> all = programs(ScheduleKind::k1F1B, 4, 8);
  const StepReplay replay = replay_step(all, times(4, 2, 3, 1));
  EXPECT_NEAR(replay.makespan_s, (8 + 3) * 6, 1e-9);
  for (int rank = 0; rank < 4; ++rank) EXPECT_NEAR(replay.bubble(rank), 3.0 / 11, 1e-12);
  EXPECT_NEAR(replay.bubble(), 3.0 / 11, 1e-12);
}

// (p - 1)(F + B - W) where F, B and W are alike, as the places of the receives suppose.
TEST_F(Replay, ZeroBubbleHasTheShorterOne) {
  const std::vector<Program> all = programs(ScheduleKind::kZb1p, 4, 8);
  EXPECT_NEAR(replay_step(all, times(4, 1, 1, 1)).makespan_s, 8 * 3 + 3, 1e-9);
}

// A receive is waited for where it stands, also when a computation behind it could go on without it: F 2, B 3, W 1 take
// longer than the 60 s of the closed form, and no longer than 1F1B's 66.
TEST_F(Replay, ReceivesHoldUpWhatStandsBehindThem) {
  const std::vector<Program> all = programs(ScheduleKind::kZb1p, 4, 8);
  const double zero_bubble = replay_step(all, times(4, 2, 3, 1)).makespan_s;
  EXPECT_GT(zero_bubble, 60);
  EXPECT_LE(zero_bubble, 66);
}

// Rank 0: F 0-1, then waits until 10 for rank 1, which computes three times as long (F 1-4, B and W 4-10); ends at 12.
TEST_F(Replay, EachRankHasItsOwnTimes) {
  const std::vector<Program> all = programs(ScheduleKind::k1F1B, 2, 1);
  const StepReplay replay = replay_step(all, {times(2, 1, 1, 1), times(2, 3, 3, 3)});
  EXPECT_NEAR(replay.makespan_s, 12, 1e-12);
  EXPECT_NEAR(replay.ranks[0].busy_s(), 3, 1e-12);
  EXPECT_NEAR(replay.bubble(0), 9.0 / 12, 1e-12);
  EXPECT_NEAR(replay.bubble(1), 3.0 / 12, 1e-12);
  EXPECT_NEAR(replay.bubble(), 0.5, 1e-12);
  // F, the wait for the gradient, BW, and the norm at the end of the step, where nobody waits: rank 0 comes last.
  std::vector<Opcode> ops;
  for (const TimelineEntry& entry : replay.timelines[0])
    if (entry.end_s > entry.begin_s) ops.push_back(entry.instruction.op);
  EXPECT_EQ(ops, (std::vector<Opcode>{Opcode::kForward, Opcode::kRecvGradients, Opcode::kBackward}));
}

// The same with transfers of half a second: one more second in all, half of it seen by each rank.
TEST_F(Replay, LinksAreNoBubble) {
  const std::vector<Program> all = programs(ScheduleKind::k1F1B, 2, 1);
  const StepReplay replay = replay_step(all, {times(2, 1, 1, 1, 0.5), times(2, 3, 3, 3, 0.5)});
  EXPECT_NEAR(replay.makespan_s, 13, 1e-12);
  EXPECT_NEAR(replay.exposed_communication(0), 0.5 / 13, 1e-12);
  EXPECT_NEAR(replay.exposed_communication(1), 0.5 / 13, 1e-12);
  EXPECT_NEAR(replay.bubble(0), (13 - 3 - 0.5) / 13, 1e-12);
  EXPECT_NEAR(replay.bubble(1), (13 - 9 - 0.5) / 13, 1e-12);
}

}  // namespace
}  // namespace fivefold::test
