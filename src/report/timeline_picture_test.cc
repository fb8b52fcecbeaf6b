#include "report/timeline_picture.h"

#include <gtest/gtest.h>

#include "reconcile/reconcile_testing.h"

namespace fivefold {
namespace {

TimelineEntry entry(Opcode op, int unit, int microbatch, double begin, double end, bool communication = false) {
  TimelineEntry made;
  made.instruction.op = op;
  made.instruction.unit = unit;
  made.instruction.microbatch = microbatch;
  made.begin_s = begin;
  made.end_s = end;
  made.communication = communication;
  return made;
}

// Names take 7 columns, " |" and "|" three, the remark its length and a blank.
int width(size_t columns, const TimelineLine& line) {
  return static_cast<int>(columns + 10 + (line.remark.empty() ? 0 : line.remark.size() + 1));
}

// Two layers forward, the wait for the gradient, a backward in two layers, the optimizer: a column a second.
TEST(TimelinePicture, JoinsTheLayersOfAMicrobatch) {
  const TimelineLine line{
      .name = "rank 0",
      .entries = {entry(Opcode::kForward, 1, 0, 0, 3), entry(Opcode::kForward, 2, 0, 3, 6),
                  entry(Opcode::kRecvGradients, 2, 0, 6, 10), entry(Opcode::kRecompute, 1, 0, 10, 12),
                  entry(Opcode::kBackward, 2, 0, 12, 14), entry(Opcode::kAccumulateGrads, 2, 0, 14, 15),
                  entry(Opcode::kBackward, 1, 0, 15, 18), entry(Opcode::kGradNorm, -1, -1, 18, 20),
                  entry(Opcode::kWaitParameters, 1, -1, 20, 22), entry(Opcode::kOptimizerStep, 1, -1, 22, 23),
                  entry(Opcode::kOptimizerStep, 2, -1, 23, 25)},
      .chunks = {{0, 3}},
      .remark = "bubble 1.0 %"};
  EXPECT_EQ(draw_timelines({{"planned", {line}}}, width(25, line)),
            "planned\n"
            "rank 0  |F0--- ....BW0---- ..~~O- | bubble 1.0 %\n"
            "         0                 25.00 s\n"
            "F forward, BW backward, O optimizer, ~ waiting for a link, . waiting; a column is 1.00 s\n");
}

TEST(TimelinePicture, HalvesAndChunksHaveTheirLetters) {
  const TimelineLine line{
      .name = "rank 0",
      .entries = {entry(Opcode::kForward, 1, 3, 0, 4), entry(Opcode::kForward, 4, 3, 4, 8),
                  entry(Opcode::kLoss, 5, 3, 8, 10), entry(Opcode::kBackwardInput, 4, 3, 10, 14),
                  entry(Opcode::kBackwardInput, 1, 3, 14, 17), entry(Opcode::kBackwardWeight, 4, 3, 17, 20)},
      .chunks = {{0, 2}, {4, 6}},
      .remark = ""};
  EXPECT_EQ(
      draw_timelines({{"", {line}}}, width(20, line)),
      "rank 0  |F3- f3- L b3- B3 w3 |\n"
      "         0            20.00 s\n"
      "F forward, B backward of inputs, W of weights, L loss, small letters the second chunk, . waiting; a column is "
      "1.00 s\n");
}

// 20 columns for 40 s: of 2 and 4 columns F12 has its number where it fits; a third of a column is not seen.
TEST(TimelinePicture, LeavesOutWhatHasNoRoom) {
  const TimelineLine line{
      .name = "rank 0",
      .entries = {entry(Opcode::kForward, 1, 12, 0, 4), entry(Opcode::kForward, 1, 13, 4, 12),
                  entry(Opcode::kForward, 1, 14, 12, 12.6), entry(Opcode::kBackward, 1, 12, 38, 40)},
      .chunks = {{0, 2}},
      .remark = ""};
  EXPECT_EQ(draw_timelines({{"", {line}}}, 1).substr(0, 31), "rank 0  |F F13 .............B|\n");
}

// A wait of a third of a column between two layers does not cut the forward in two; one of a whole column does.
TEST(TimelinePicture, JoinsPartsThatOnlyTheUnseenSeparates) {
  const TimelineLine line{.name = "rank 0",
                          .entries = {entry(Opcode::kForward, 1, 0, 0, 6), entry(Opcode::kWaitUnshard, 2, 0, 6, 6.3),
                                      entry(Opcode::kForward, 2, 0, 6.3, 10), entry(Opcode::kWaitUnshard, 3, 0, 10, 11),
                                      entry(Opcode::kForward, 3, 0, 11, 20)},
                          .chunks = {{0, 4}},
                          .remark = ""};
  EXPECT_EQ(draw_timelines({{"", {line}}}, 1).substr(0, 31), "rank 0  |F0------- ~F0------ |\n");
}

TEST(TimelinePicture, DrawsTheNetworkApart) {
  const std::vector<TimelineEntry> entries = {
      entry(Opcode::kUnshard, 1, 0, 0, 4, true), entry(Opcode::kWaitUnshard, 1, 0, 0, 4),
      entry(Opcode::kForward, 1, 0, 4, 12), entry(Opcode::kReduceGrads, 1, 0, 12, 20, true)};
  const TimelineLine compute{.name = "compute", .entries = entries, .chunks = {{0, 2}}, .remark = ""};
  const TimelineLine network{.name = "network", .entries = entries, .chunks = {{0, 2}}, .remark = "", .network = true};
  EXPECT_EQ(draw_timelines({{"", {compute, network}}}, width(20, compute)),
            "compute |~~~~F0----- ........|\n"
            "network |G-- ........R------ |\n"
            "         0            20.00 s\n"
            "F forward, ~ waiting for a link, G gather of weights, R reduction of gradients, . waiting; a column is "
            "1.00 s\n");
}

// Blocks share one scale: the shorter one ends early.
TEST(TimelinePicture, BlocksShareTheScale) {
  const TimelineLine slow{
      .name = "rank 0", .entries = {entry(Opcode::kForward, 1, 0, 0, 20)}, .chunks = {{0, 2}}, .remark = ""};
  const TimelineLine quick{
      .name = "rank 0", .entries = {entry(Opcode::kForward, 1, 0, 0, 5)}, .chunks = {{0, 2}}, .remark = ""};
  EXPECT_EQ(draw_timelines({{"planned", {quick}}, {"measured", {slow}}}, 30).substr(0, 79),
            "planned\n"
            "rank 0  |F0-- ...............|\n"
            "measured\n"
            "rank 0  |F0----------------- |\n");
}

// Rank 1 begins 20 ms later. Of the steady steps 3 to 6 step 4 is the second quickest. Of its 100 ms a rank
// computes 20 + 10 + 40 + 10 (reconcile_testing.h).
TEST(MeasuredBlock, IsTheMedianSteadyStepInWallTime) {
  PlannedRun run = reconcile_testing::example_run();
  const double seconds[] = {9, 9, 0.4, 0.1, 0.2, 0.05};
  for (int rank : {0, 1})
    for (size_t i = 0; i < 6; ++i) reconcile_testing::steps_of(run, rank)[i].seconds = seconds[i];
  for (StepRecord& step : reconcile_testing::steps_of(run, 1)) step.begin_s += 0.02;
  const TimelineBlock block = measured_block(run);
  EXPECT_EQ(block.heading, "measured, step 4");
  ASSERT_EQ(block.lines.size(), 2u);
  EXPECT_EQ(block.lines[0].remark, "waits 20.0 %");
  EXPECT_NEAR(block.lines[0].entries[2].begin_s, 0.007, 1e-6);
  EXPECT_NEAR(block.lines[1].entries[2].begin_s, 0.027, 1e-6);
  EXPECT_EQ(block.lines[1].entries[2].instruction.op, Opcode::kForward);
  run.record.ranks[1].sessions[0].program.pop_back();
  EXPECT_TRUE(measured_block(run).lines.empty());
}

// Two ranks of a pipeline that compute 3 and 9 of 12 s.
TEST(ReplayBlock, SaysHowLongEachRankWaits) {
  StepReplay replay;
  replay.makespan_s = 12;
  replay.ranks.resize(2);
  replay.ranks[0].seconds = 12;
  replay.ranks[0].parts[static_cast<size_t>(TimePart::kBubble)] = 9;
  replay.ranks[1].seconds = 10;
  replay.ranks[1].parts[static_cast<size_t>(TimePart::kExposedCommunication)] = 1;
  replay.timelines.resize(2);
  PlannedRun run = reconcile_testing::example_run(1);
  run.plan.config.degrees.pp = run.plan.config.config.parallel.pp = 2;
  run.plan.config.layers_per_chunk = {1, 0};
  const TimelineBlock block = replay_block("planned", replay, run.plan.model, run.plan.config);
  ASSERT_EQ(block.lines.size(), 2u);
  EXPECT_EQ(block.lines[0].name, "rank 0");
  EXPECT_EQ(block.lines[0].remark, "bubble 75.0 %");
  EXPECT_EQ(block.lines[1].remark, "bubble 16.7 %, links 8.3 %");
}

TEST(TimelinePicture, NothingIsAnEmptyText) { EXPECT_EQ(draw_timelines({{"measured", {}}}, 100), ""); }

}  // namespace
}  // namespace fivefold
