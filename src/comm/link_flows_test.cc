#include "comm/link_flows.h"

#include <gtest/gtest.h>

#include <limits>

namespace fivefold {
namespace {

// One stage of one link.
std::vector<LinkStage> over(int link, double weight = 1) { return {{{.link = link, .weight = weight}}}; }

TEST(LinkFlows, TakesLatencyAndThenItsBytes) {
  LinkFlows flows({100.0});
  const int64_t transfer = flows.start(1.0, 0.5, 200, over(0));
  EXPECT_DOUBLE_EQ(flows.foreseen_end(transfer), 3.5);  // 1 + 0.5 + 200 / 100
  flows.advance(3.4);
  EXPECT_FALSE(flows.complete(transfer));
  EXPECT_EQ(flows.num_active(), 1);
  flows.advance(3.6);
  EXPECT_TRUE(flows.complete(transfer));
  EXPECT_DOUBLE_EQ(flows.last_end(), 3.5);
}

TEST(LinkFlows, WithoutBytesEndsWithItsLatency) {
  LinkFlows flows({100.0});
  const int64_t transfer = flows.start(0, 0.25, 0, {});
  EXPECT_DOUBLE_EQ(flows.foreseen_end(transfer), 0.25);
  flows.advance(1);
  EXPECT_TRUE(flows.complete(transfer));
}

TEST(LinkFlows, GoesAtTheRateOfItsSlowestStageAndTheSumOfItsLinks) {
  LinkFlows flows({100.0, 30.0, 20.0, std::numeric_limits<double>::infinity()});
  // Links 1 and 2 together carry 50 bytes/s, link 0 100, link 3 any number.
  const int64_t transfer = flows.start(0, 0, 200, {{{0}}, {{1}, {2}}, {{3}}});
  EXPECT_DOUBLE_EQ(flows.foreseen_end(transfer), 4.0);
  const int64_t free = flows.start(0, 0.5, 1e9, over(3));
  EXPECT_DOUBLE_EQ(flows.foreseen_end(free), 0.5);
}

// Alone each takes 2 s. A has the link to itself for 1 s and 100 bytes; from then on both have 50 bytes/s: A ends at 3;
// B has moved 100 by then and moves the other 100 in 1 s.
TEST(LinkFlows, ALinkIsSharedWhileBothUseIt) {
  LinkFlows flows({100.0});
  const int64_t a = flows.start(0, 0, 200, over(0));
  EXPECT_DOUBLE_EQ(flows.foreseen_end(a), 2.0);
  const int64_t b = flows.start(1, 0, 200, over(0));
  EXPECT_DOUBLE_EQ(flows.foreseen_end(a), 3.0);
  EXPECT_DOUBLE_EQ(flows.foreseen_end(b), 4.0);
  flows.advance(3.5);
  EXPECT_TRUE(flows.complete(a));
  EXPECT_DOUBLE_EQ(flows.foreseen_end(b), 4.0);
}

// The same with all events inside one advance().
TEST(LinkFlows, EndsDoNotDependOnHowOftenItIsAdvanced) {
  LinkFlows flows({100.0});
  flows.start(0, 0, 200, over(0));
  flows.start(1, 0, 200, over(0));
  flows.advance(100);
  EXPECT_EQ(flows.num_active(), 0);
  EXPECT_DOUBLE_EQ(flows.last_end(), 4.0);
}

TEST(LinkFlows, DuringItsLatencyATransferTakesNoBandwidth) {
  LinkFlows flows({100.0});
  const int64_t a = flows.start(0, 0, 100, over(0));
  const int64_t b = flows.start(0, 1, 100, over(0));
  EXPECT_DOUBLE_EQ(flows.foreseen_end(a), 1.0);
  EXPECT_DOUBLE_EQ(flows.foreseen_end(b), 2.0);
}

// 3 : 1 of 100 bytes/s: A 75, B 25 until A is through at 2; B then has 50 of 100 bytes left.
TEST(LinkFlows, SharesGoByWeight) {
  LinkFlows flows({100.0});
  const int64_t a = flows.start(0, 0, 150, over(0, 3));
  const int64_t b = flows.start(0, 0, 100, over(0, 1));
  EXPECT_DOUBLE_EQ(flows.foreseen_end(a), 2.0);
  EXPECT_DOUBLE_EQ(flows.foreseen_end(b), 2.5);
}

TEST(LinkFlows, OthersLinksAreNotShared) {
  LinkFlows flows({100.0, 100.0});
  const int64_t a = flows.start(0, 0, 100, over(0));
  const int64_t b = flows.start(0, 0, 100, over(1));
  EXPECT_DOUBLE_EQ(flows.foreseen_end(a), 1.0);
  EXPECT_DOUBLE_EQ(flows.foreseen_end(b), 1.0);
}

}  // namespace
}  // namespace fivefold
