#include "base/integer.h"

#include <gtest/gtest.h>

namespace fivefold {
namespace {

TEST(Integer, DivisionSaysWhichOneItMeans) {
  EXPECT_EQ(div_exact(12, 4), 3);
  EXPECT_EQ(div_ceil(13, 4), 4);
  EXPECT_EQ(div_ceil(0, 4), 0);
  EXPECT_EQ(div_floor(13, 4), 3);
  EXPECT_EQ(round_up(257, 256), 512);
  EXPECT_EQ(round_up(256, 256), 256);
}

TEST(IntegerDeathTest, InexactDivisionIsABug) { EXPECT_DEATH((void)div_exact(13, 4), "does not hold"); }

}  // namespace
}  // namespace fivefold
