#include "base/table.h"

#include <gtest/gtest.h>

namespace fivefold {
namespace {

TEST(Table, AlignsNumbersRightAndTextLeft) {
  Table table({"account", "bytes"});
  table.add_row({"params", "12"});
  table.add_row({"参数", "1,234"});
  EXPECT_EQ(table.to_string(),
            "account  bytes\n"
            "-------  -----\n"
            "params      12\n"
            "参数     1,234\n");
}

}  // namespace
}  // namespace fivefold
