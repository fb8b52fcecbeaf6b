#include "schedule/schedule_source.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "schedule/generate.h"
#include "schedule/run_program.h"
#include "schedule/schedule_file.h"
#include "spec/validate_test_models.h"

namespace fivefold {
namespace {

class ScheduleSourceTest : public ::testing::Test {
 protected:
  ScheduleSourceTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(folder_);
  }
  ~ScheduleSourceTest() override { std::filesystem::remove_all(folder_); }

  RunConfig config_of(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path, std::ios::binary) << text;
    RunConfig config;
    config.parallel.pp = 4;
    config.parallel.vpp = 2;
    config.parallel.schedule = ScheduleKind::kFile;
    config.parallel.schedule_file = path.string();
    config.batch.global = 6;
    return config;
  }
  std::filesystem::path folder_;
};

TEST_F(ScheduleSourceTest, TextAndCsvGiveTheScheduleThatWasWritten) {
  const Schedule schedule = *generate(ScheduleKind::kVHalf, 4, 2, 6);
  const std::pair<std::string, std::string> files[] = {
      {"schedule.txt", write_schedule_text(schedule)},
      {"schedule.csv", write_schedule_csv(schedule, CsvContent::kComputations)}};
  for (const auto& [name, text] : files) {
    RunConfig config = config_of(name, text);
    const Status read = read_schedule_source(config);
    ASSERT_TRUE(read.ok()) << read.error().message();
    EXPECT_EQ(config.parallel.schedule_source.placement, Placement::kV);
    EXPECT_EQ(pipeline_schedule(resolve(config, test::dense_model()).value()), schedule) << name;
  }
}

// A CSV does not say which transfers are joined.
TEST_F(ScheduleSourceTest, WhatIsWrittenIsRead) {
  const Schedule schedule = *generate(ScheduleKind::kZbv, 4, 2, 6);
  for (const char* name : {"written.txt", "written.csv"}) {
    RunConfig config = config_of(name, "");
    ASSERT_TRUE(write_schedule_file(schedule, config.parallel.schedule_file).ok());
    ASSERT_TRUE(read_schedule_source(config).ok());
    Schedule again = pipeline_schedule(resolve(config, test::dense_model()).value());
    Schedule right = schedule;
    if (std::string_view(name).ends_with(".csv"))
      for (auto& actions : right.ranks)
        for (ScheduleAction& action : actions) action.joined = false;
    EXPECT_EQ(again, right) << name;
  }
  EXPECT_EQ(write_schedule_file(schedule, (folder_ / "no" / "folder").string()).error().problem, "cannot be written");
}

// A run's record holds the text: the file may be gone.
TEST_F(ScheduleSourceTest, TheTextOfARecordReplacesTheFile) {
  RunConfig config = config_of("schedule.txt", write_schedule_text(*generate(ScheduleKind::kZbv, 4, 2, 6)));
  ASSERT_TRUE(read_schedule_source(config).ok());
  RunConfig again = config;
  again.parallel.schedule_source = {};
  std::filesystem::remove(config.parallel.schedule_file);
  ASSERT_TRUE(set_schedule_source(again, config.parallel.schedule_source.text, "record").ok());
  EXPECT_EQ(again, config);
}

TEST_F(ScheduleSourceTest, OtherSchedulesReadNothing) {
  RunConfig config;
  config.parallel.schedule_file = (folder_ / "missing").string();
  const RunConfig before = config;
  EXPECT_TRUE(read_schedule_source(config).ok());
  EXPECT_EQ(config, before);
}

TEST_F(ScheduleSourceTest, WhatIsNotASchedule) {
  RunConfig config = config_of("schedule.txt", "pipeline ranks=1 chunks=1 microbatches=2 placement=loop\nrank 0: F0\n");
  const std::string path = config.parallel.schedule_file;
  // Microbatch 0 has no backward, microbatch 1 nothing.
  EXPECT_NE(read_schedule_source(config).error().message().find("schedule.txt"), std::string::npos);
  config.parallel.schedule_file = (folder_ / "missing").string();
  EXPECT_EQ(read_schedule_source(config).error().message(),
            "parallel.schedule_file: " + (folder_ / "missing").string() +
                " does not exist (give the path of a schedule (docs/formats/schedule.md))");
  config.parallel.schedule_file = folder_.string();
  EXPECT_EQ(read_schedule_source(config).error().problem, folder_.string() + " is not a file");
}

}  // namespace
}  // namespace fivefold
