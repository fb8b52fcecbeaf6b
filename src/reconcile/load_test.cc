// A run's folder is enough to reconcile it: no configuration file, no model folder.
#include "reconcile/load.h"

#include <unistd.h>

#include <fstream>

#include "reconcile/reconcile_testing.h"
#include "record/record_writer.h"
#include "spec/run_config_io.h"

namespace fivefold {
namespace {

using namespace reconcile_testing;

class LoadPlannedRunTest : public testing::Test {
 protected:
  LoadPlannedRunTest()
      : folder_(std::filesystem::temp_directory_path() / ("fivefold-load-" + std::to_string(getpid()))) {
    RunStart start;
    start.world = 2;
    start.threads = 3;
    start.configuration = to_toml(example_config(2));
    start.model_config = kModel;
    for (start.rank = 0; start.rank < 2; ++start.rank) RecordWriter(folder_, start.rank).write(start);
  }
  ~LoadPlannedRunTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(LoadPlannedRunTest, PlansWhatTheRecordSays) {
  const auto run = load_planned_run({.run_directory = folder_, .against = {}, .set = {}, .hardware = {}, .model = {}});
  ASSERT_TRUE(run.ok()) << run.error().message();
  EXPECT_EQ(run->plan.threads, 3);
  EXPECT_EQ(run->plan.model.hidden, 64);
  EXPECT_EQ(run->plan.config.degrees.dp, 2);
  EXPECT_EQ(run->record.ranks.size(), 2u);
  EXPECT_FALSE(run->plan.time);
}

TEST_F(LoadPlannedRunTest, PlansWhatWasAskedInstead) {
  const auto model = [](const ModelConfig&) -> Result<ModelSpec> { return Error{"model", "was not needed", ""}; };
  const auto set = load_planned_run(
      {.run_directory = folder_, .against = {}, .set = {"parallel.zero=3"}, .hardware = {}, .model = model});
  ASSERT_TRUE(set.ok()) << set.error().message();
  EXPECT_EQ(set->plan.config.config.parallel.zero, 3);
  EXPECT_EQ(set->plan.config.config.batch.sequence, 32);
  std::ofstream(folder_ / "other.toml") << "[parallel]\ndp = 2\n[batch]\nsequence = 16\n";
  const auto against = load_planned_run(
      {.run_directory = folder_, .against = folder_ / "other.toml", .set = {}, .hardware = {}, .model = model});
  ASSERT_TRUE(against.ok()) << against.error().message();
  EXPECT_EQ(against->plan.config.config.batch.sequence, 16);
  const auto other = load_planned_run(
      {.run_directory = folder_, .against = {}, .set = {"model.name=other"}, .hardware = {}, .model = model});
  EXPECT_EQ(other.error().problem, "was not needed");
}

TEST_F(LoadPlannedRunTest, PassesErrorsOn) {
  const auto unknown = [](const RunConfig& config) -> Result<HardwareSpec> {
    return Error{config.hardware.name, "is unknown", ""};
  };
  EXPECT_EQ(load_planned_run({.run_directory = folder_, .against = {}, .set = {}, .hardware = unknown, .model = {}})
                .error()
                .message(),
            "this-machine: is unknown");
  EXPECT_FALSE(
      load_planned_run({.run_directory = folder_, .against = {}, .set = {"parallel.dp=0"}, .hardware = {}, .model = {}})
          .ok());
  EXPECT_FALSE(
      load_planned_run({.run_directory = folder_ / "none", .against = {}, .set = {}, .hardware = {}, .model = {}})
          .ok());
}

}  // namespace
}  // namespace fivefold
