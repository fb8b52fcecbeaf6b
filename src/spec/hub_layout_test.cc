#include "spec/hub_layout.h"

#include <gtest/gtest.h>

namespace fivefold {
namespace {

TEST(HubLayout, CutsRowsAndTransposesWhereTheDiskDoes) {
  ParameterEntry entry;
  entry.shape = entry.whole_shape = {3, 2};
  entry.parts = {{"q", 0, 1, false}, {"kv", 1, 2, true}};
  const std::vector<float> packed{1, 2, 3, 4, 5, 6};  // rows (1 2) (3 4) (5 6)
  EXPECT_EQ(hub_shape(entry, entry.parts[0]), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(hub_values(entry, entry.parts[0], packed), (std::vector<float>{1, 2}));
  EXPECT_EQ(hub_shape(entry, entry.parts[1]), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(hub_values(entry, entry.parts[1], packed), (std::vector<float>{3, 5, 4, 6}));
  std::vector<float> again(6);
  for (const HubPart& part : entry.parts) place_hub_values(entry, part, hub_values(entry, part, packed), again);
  EXPECT_EQ(again, packed);
}

TEST(HubLayout, VectorsAreNeverTransposed) {
  ParameterEntry entry;
  entry.shape = entry.whole_shape = {3};
  entry.parts = {{"bias", 0, 3, true}};
  EXPECT_EQ(hub_shape(entry, entry.parts[0]), (std::vector<int64_t>{3}));
  EXPECT_EQ(hub_values(entry, entry.parts[0], std::vector<float>{1, 2, 3}), (std::vector<float>{1, 2, 3}));
}

}  // namespace
}  // namespace fivefold
