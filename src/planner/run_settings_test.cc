#include "planner/run_settings.h"

#include "planner/planner_testing.h"
#include "spec/run_config_io.h"

namespace fivefold::test {
namespace {

using Settings = std::vector<std::string>;

RunConfig configured(const Settings& settings) { return load_config({.set = settings}).config; }

Settings between(const Settings& from, const Settings& to) {
  const ModelSpec model = named_model("smollm2-135m");
  const RunSettings run = run_settings(model, configured(from), configured(to));
  EXPECT_TRUE(load_config({.set = run.settings}, configured(from)).config == run.config);
  return run.settings;
}

// One rank has one shard of whatever size, at any level, and one microbatch is its batch.
TEST(RunSettings, LeaveOutWhatFollows) {
  EXPECT_EQ(between({}, {"method.kind=lora", "parallel.zero=3", "parallel.shard_size=1", "batch.global=1"}),
            Settings{"method.kind=lora"});
  EXPECT_EQ(between({"parallel.dp=4"}, {"parallel.dp=4", "parallel.zero=3", "parallel.shard_size=4"}),
            Settings{"parallel.zero=3"});
  EXPECT_EQ(between({}, {}), Settings{});
}

TEST(RunSettings, KeepWhatMattersWhereThereAreShards) {
  EXPECT_EQ(between({"parallel.dp=4", "batch.global=8"},
                    {"parallel.dp=4", "parallel.zero=3", "parallel.shard_size=2", "batch.global=16"}),
            (Settings{"parallel.zero=3", "parallel.shard_size=2", "batch.global=16"}));
}

// A batch that follows from dp changes with it, unless it is said.
TEST(RunSettings, KeepABatchThatWouldFollowOtherwise) {
  EXPECT_EQ(between({"parallel.dp=4"}, {"parallel.dp=2", "batch.global=4"}),
            (Settings{"parallel.dp=2", "batch.global=4"}));
}

}  // namespace
}  // namespace fivefold::test
