#include "planner/published/published_run.h"

#include <gtest/gtest.h>

#include <fstream>

namespace fivefold {
namespace {

Result<std::vector<PublishedRun>> read_text(const std::string& text) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "published_run_test.csv";
  std::ofstream(file, std::ios::binary) << text;
  return read_published_runs(file);
}

TEST(PublishedRun, ReadsQuotedCellsAndLeavesEmptyOnesOut) {
  const auto rows = read_text(
      "# where it is from, with, commas\n"
      "id,source,notes,hidden\r\n"
      "a-1,a,\"says \"\"so\"\", twice\nand on\",4096\r\n"
      "a-2,a,,\n");
  ASSERT_TRUE(rows.ok()) << rows.error().message();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[0].text("notes"), "says \"so\", twice\nand on");
  EXPECT_EQ((*rows)[0].integer("hidden", 0), 4096);
  EXPECT_FALSE((*rows)[1].fields.contains("notes"));
  EXPECT_EQ((*rows)[1].integer("hidden", 7), 7);
}

TEST(PublishedRun, NumbersMayBeFollowedByText) {
  const auto rows = read_text("id,zero_stage,sp,seq_len\nx,3 (shard over 8),yes,variable\n");
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ((*rows)[0].number("zero_stage"), 3.0);
  EXPECT_EQ((*rows)[0].number("sp"), std::nullopt);
  EXPECT_EQ((*rows)[0].number("seq_len"), std::nullopt);
}

TEST(PublishedRun, NotesHoldKeys) {
  const auto rows = read_text("id,notes\nx,\"file=a/b; target_modules=q_proj v_proj; torch=2.4\"\n");
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ((*rows)[0].note("file"), "a/b");
  EXPECT_EQ((*rows)[0].note("target_modules"), "q_proj v_proj");
  EXPECT_EQ((*rows)[0].note("modules"), "");
}

TEST(PublishedRun, ErrorsNameTheLine) {
  const auto rows = read_text("id,source\na,b\nc,d,e\n");
  ASSERT_FALSE(rows.ok());
  EXPECT_EQ(rows.error().message(),
            "published_run_test.csv:3: has 3 cells, the header 2 (quote cells that hold commas)");
  EXPECT_FALSE(read_text("# nothing but a remark\n").ok());
  EXPECT_FALSE(read_published_runs("no such file").ok());
}

}  // namespace
}  // namespace fivefold
