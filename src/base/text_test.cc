#include "base/text.h"

#include <gtest/gtest.h>

namespace fivefold {
namespace {

TEST(Text, SizesForPeople) {
  EXPECT_EQ(format_bytes(12), "12 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(18'897'856'102), "17.60 GiB");  // 17.6 * 2^30
  EXPECT_EQ(format_count(12345678), "12,345,678");
  EXPECT_EQ(format_count(-999), "-999");
  EXPECT_EQ(format_seconds(0.0231), "23.10 ms");
}

TEST(Text, NearestNameHelpsTypos) {
  EXPECT_EQ(nearest_name("schedul", {"schedule", "steps", "sequence"}), "schedule");
  EXPECT_FALSE(nearest_name("zzzzzz", {"schedule", "steps"}).has_value());
  EXPECT_EQ(name_hint("zzzzzz", {"a", "b"}), "known: a, b");
}

TEST(Text, ParsesSizesWithBothUnitFamilies) {
  EXPECT_EQ(*parse_bytes("24GB"), 24'000'000'000);
  EXPECT_EQ(*parse_bytes("1.5GiB"), 1'610'612'736);
  EXPECT_EQ(*parse_bytes("600 MiB"), 629'145'600);
  EXPECT_EQ(*parse_bytes("4096"), 4096);
  EXPECT_FALSE(parse_bytes("-1GB").ok());
  EXPECT_FALSE(parse_bytes("12 parsecs").ok());
  EXPECT_FALSE(parse_bytes("").ok());
}

}  // namespace
}  // namespace fivefold
