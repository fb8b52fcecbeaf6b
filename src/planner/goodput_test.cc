#include "planner/goodput.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fivefold {
namespace {

// Llama 3 on 16,384 GPUs: an interruption every 54 x 24 / 419 = 3.09 hours.
TEST(Goodput, FailsAsOftenAsLlama3Did) {
  const Goodput g = goodput(16384, 2048, 405.85e9 * 14);
  EXPECT_NEAR(g.failure_every_s, 3.093 * 3600, 5);
  // 5.68e12 B / (2048 x 2e9 B/s) = 1.39 s; sqrt(2 x 1.39 x 11135) = 176 s.
  EXPECT_NEAR(g.stall_s, 1.387, 0.01);
  EXPECT_NEAR(g.checkpoint_every_s, 175.8, 1);
  // 1.387 / 175.8 + (87.9 + 600) / 11135 = 0.0079 + 0.0618.
  EXPECT_NEAR(g.share, 0.930, 0.001);
}

// Young's interval is where the loss is least.
TEST(Goodput, ItsIntervalLosesLeast) {
  const Goodput g = goodput(1024, 128, 1e12);
  const auto lost = [&](double every) { return g.stall_s / every + every / 2 / g.failure_every_s; };
  EXPECT_LT(lost(g.checkpoint_every_s), lost(0.9 * g.checkpoint_every_s));
  EXPECT_LT(lost(g.checkpoint_every_s), lost(1.1 * g.checkpoint_every_s));
}

}  // namespace
}  // namespace fivefold
