#include "base/result.h"

#include <gtest/gtest.h>

namespace fivefold {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return Error{"x", "is odd", "use an even number"};
  return x / 2;
}

Result<int> quarter(int x) {
  FIVEFOLD_ASSIGN(const int h, half(x));
  return half(h);
}

TEST(Result, CarriesValueOrError) {
  EXPECT_EQ(*quarter(8), 2);
  ASSERT_FALSE(quarter(6).ok());
  EXPECT_EQ(quarter(6).error().message(), "x: is odd (use an even number)");
}

TEST(ResultDeathTest, ValueOfAnErrorIsABug) { EXPECT_DEATH((void)half(3).value(), "is odd"); }

}  // namespace
}  // namespace fivefold
