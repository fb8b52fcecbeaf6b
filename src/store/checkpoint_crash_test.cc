// Kills a saving process at every point of the protocol, and makes the disk refuse.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "store/checkpoint_test_support.h"
#include "store/test_files.h"

namespace fivefold {
namespace {

constexpr int kKilled = 77;

// Before the save under test the root holds steps 1 and 2; `step` is what the save under test writes.
void prepare(const std::filesystem::path& root) {
  ASSERT_TRUE(save(CheckpointWriter(root), 1, made_up_state(1)).ok());
  ASSERT_TRUE(save(CheckpointWriter(root), 2, made_up_state(2)).ok());
}

std::vector<std::string> points_of_a_save(int64_t step, Cut cut) {
  TempFolder root;
  prepare(root.path());
  std::vector<std::string> points;
  const CheckpointWriterOptions options{.keep = 1,
                                        .observer = [&](std::string_view point) { points.emplace_back(point); }};
  EXPECT_TRUE(save(CheckpointWriter(root.path(), options), step, made_up_state(9), 2, cut).ok());
  return points;
}

// A child saves and dies when it reaches its `fatal`-th point.
void save_and_die(const std::filesystem::path& root, int64_t step, size_t fatal, Cut cut = Cut::kRanges) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    size_t reached = 0;
    const CheckpointWriterOptions options{.keep = 1, .observer = [&](std::string_view) {
                                            if (reached++ == fatal) ::_exit(kKilled);
                                          }};
    static_cast<void>(save(CheckpointWriter(root, options), step, made_up_state(9), 2, cut).ok());
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  ASSERT_EQ(WEXITSTATUS(status), kKilled);
}

// Saves `step` over a root with steps 1 and 2, killed at each point in turn. Those two and the save after the killed
// one are not cut into column blocks.
void kill_everywhere(int64_t step, const std::vector<std::string>& expected_points, Cut cut = Cut::kRanges) {
  const std::vector<std::string> points = points_of_a_save(step, cut);
  ASSERT_EQ(points, expected_points);
  const size_t latest_renamed = std::ranges::find(points, "latest_renamed") - points.begin();
  const size_t renamed = std::ranges::find(points, "renamed") - points.begin();
  for (size_t fatal = 0; fatal < points.size(); ++fatal) {
    SCOPED_TRACE("killed at " + points[fatal] + ", point " + std::to_string(fatal));
    TempFolder root;
    prepare(root.path());
    save_and_die(root.path(), step, fatal, cut);
    auto reader = CheckpointReader::open(root.path());
    ASSERT_TRUE(reader.ok()) << reader.error().message();
    // `latest` decides; when the same step is saved again it names the new folder from the rename on.
    const bool is_new = fatal >= latest_renamed || (step == 2 && fatal >= renamed);
    EXPECT_EQ(reader->run().step, is_new ? step : 2);
    expect_state(*reader, made_up_state(is_new ? 9 : 2), 3);
    // The next save goes through and leaves nothing of the dead run.
    ASSERT_TRUE(save(CheckpointWriter(root.path(), {.keep = 1}), step, made_up_state(5)).ok());
    EXPECT_EQ(names_in(root.path()), (std::set<std::string>{"latest", "step-" + std::to_string(step)}));
    auto next = CheckpointReader::open(root.path());
    ASSERT_TRUE(next.ok());
    expect_state(*next, made_up_state(5), 1);
  }
}

const std::vector<std::string> kPointsOfANewStep = {
    "root_created",    "leftovers_removed", "temp_created",  "shard_opened", "shard_written",
    "shard_synced",    "shard_opened",      "shard_written", "shard_synced", "manifest_written",
    "manifest_synced", "renamed",           "root_synced",   "latest_temp",  "latest_renamed",
    "old_hidden",      "old_removed",       "old_hidden",    "old_removed"};

TEST(CheckpointCrash, KilledAnywhereThePreviousOrTheNewOneIsWhole) { kill_everywhere(3, kPointsOfANewStep); }

TEST(CheckpointCrash, KilledAnywhereWithColumnBlocks) { kill_everywhere(3, kPointsOfANewStep, Cut::kBlocks); }

TEST(CheckpointCrash, KilledAnywhereWhileAStepIsSavedAgain) {
  kill_everywhere(2, {"root_created",    "leftovers_removed", "temp_created",  "shard_opened", "shard_written",
                      "shard_synced",    "shard_opened",      "shard_written", "shard_synced", "manifest_written",
                      "manifest_synced", "set_aside",         "renamed",       "root_synced",  "latest_temp",
                      "latest_renamed",  "old_hidden",        "old_removed",   "old_hidden",   "old_removed"});
}

// The very first save: before the rename there is nothing, after it the checkpoint is found without `latest`.
TEST(CheckpointCrash, TheFirstSaveIsThereFromItsRename) {
  TempFolder root;
  save_and_die(root.path(), 1, 10);  // manifest_synced
  EXPECT_EQ(CheckpointReader::open(root.path()).error().problem, "holds no checkpoint");
  TempFolder other;
  save_and_die(other.path(), 1, 11);  // renamed
  auto reader = CheckpointReader::open(other.path());
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->fallback_reason(), (other / "latest").string() + ": missing; using step-1 instead");
  expect_state(*reader, made_up_state(9), 1);
}

// Limits the size of files for as long as it lives; writes beyond it fail with EFBIG instead of a signal.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = SIG_DFL;
};

TEST(CheckpointDisk, AFullDiskIsNamedAndHarmless) {
  TempFolder root;
  prepare(root.path());
  const auto shard_bytes = std::filesystem::file_size(root / "step-2/rank-00000.safetensors");
  // First the shard does not fit, then the shards do and the longer manifest does not.
  for (const auto& [limit, file] :
       {std::pair{shard_bytes - 1, "rank-00000.safetensors"}, std::pair{shard_bytes, "manifest.json"}}) {
    ASSERT_GT(std::filesystem::file_size(root / "step-2/manifest.json"), shard_bytes);
    try {
      const FileSizeLimit full(limit);
      static_cast<void>(save(CheckpointWriter(root.path()), 3, made_up_state(3)).ok());
      FAIL() << "nothing thrown";
    } catch (const StoreError& error) {
      EXPECT_EQ(error.error_number(), EFBIG);
      EXPECT_EQ(error.path().filename(), file);
    }
    auto reader = CheckpointReader::open(root.path());
    ASSERT_TRUE(reader.ok());
    EXPECT_EQ(reader->fallback_reason(), "");
    expect_state(*reader, made_up_state(2), 2);
  }
}

TEST(CheckpointDisk, ARootThatCannotBeIsNamed) {
  TempFolder folder;
  write_file(folder / "file", "x");
  try {
    static_cast<void>(CheckpointWriter(folder / "file/root").begin(1, 1));
    FAIL() << "nothing thrown";
  } catch (const StoreError& error) {
    EXPECT_EQ(error.error_number(), ENOTDIR);
    EXPECT_EQ(error.what(), (folder / "file/root").string() + ": cannot create: Not a directory (errno 20)");
  }
  EXPECT_EQ(CheckpointReader::open(folder / "file/root").error().problem, "no such folder");
}

// Ranks that disagree about the save.
class CheckpointRanks : public testing::Test {
 protected:
  CheckpointRanks() : writer_(root_.path()), ticket_(writer_.begin(4, 2)) {}
  ShardReceipt shard(int rank) const {
    return writer_.write_shard(ticket_, rank, pieces_of(made_up_state(0), rank, 2));
  }
  // Commits, expects the problem at `place` below the temporary folder, and that nothing was published.
  void expect_refused(const std::vector<ShardReceipt>& receipts, const std::string& place,
                      const std::string& problem) const {
    const auto folder = writer_.commit(ticket_, run_at(4), receipts);
    ASSERT_FALSE(folder.ok());
    EXPECT_EQ(folder.error().where, (root_ / ("step-4.tmp-" + ticket_.nonce)).string() + place);
    EXPECT_EQ(folder.error().problem, problem);
    EXPECT_FALSE(std::filesystem::exists(root_ / "step-4"));
    EXPECT_FALSE(std::filesystem::exists(root_ / "latest"));
  }

  TempFolder root_;
  CheckpointWriter writer_;
  SaveTicket ticket_;
};

TEST_F(CheckpointRanks, AnotherStep) {
  ShardReceipt other = shard(1);
  other.step = 5;
  expect_refused({shard(0), other}, " (rank 1)", "saved step 5, but this is the save of step 4");
  SaveTicket wrong = ticket_;
  wrong.step = 5;
  EXPECT_THROW(static_cast<void>(writer_.write_shard(wrong, 1, {})), StoreError);
  const auto folder = writer_.commit(ticket_, run_at(5), {shard(0), shard(1)});
  EXPECT_EQ(folder.error().problem, "the run is at step 5, but this is the save of step 4");
}

TEST_F(CheckpointRanks, AnotherSave) {
  ShardReceipt other = shard(1);
  other.nonce = "0123";
  expect_refused({shard(0), other}, " (rank 1)", "wrote for save '0123', but this is save '" + ticket_.nonce + "'");
}

TEST_F(CheckpointRanks, MissingTwiceAndUnknown) {
  expect_refused({shard(0)}, " (rank 1)", "handed in no shard");
  expect_refused({shard(0), shard(0)}, " (rank 0)", "handed in two shards");
  expect_refused({shard(0), shard(1), shard(2)}, " (rank 2)", "is not one of the 2 ranks");
}

TEST_F(CheckpointRanks, TensorsThatDoNotFitTogether) {
  const StateKey key = {"params", "norm.weight"};
  ShardReceipt other = shard(1);
  other.tensors.at(key).dtype = DType::kBFloat16;
  expect_refused({shard(0), other}, " (params/norm.weight)", "rank 1 holds it as bf16 [17], another rank as fp32 [17]");
  other = shard(1);
  other.tensors.at(key).pieces[0].begin = 10;  // 9 by right
  expect_refused({shard(0), other}, " (params/norm.weight)", "elements [9, 10) are in no piece");
  other.tensors.at(key).pieces[0].begin = 8;
  expect_refused({shard(0), other}, " (params/norm.weight)",
                 "piece [8, 17) of rank-00001.safetensors overlaps piece [0, 9) of rank-00000.safetensors");
}

TEST_F(CheckpointRanks, AShardOnAnotherFileSystem) {
  const std::vector<ShardReceipt> receipts = {shard(0), shard(1)};
  const std::string name = "step-4.tmp-" + ticket_.nonce + "/rank-00001.safetensors";
  std::filesystem::remove(root_ / name);
  expect_refused(receipts, "/rank-00001.safetensors", "is not there as its rank wrote it");
}

TEST_F(CheckpointRanks, TextThatIsNotUtf8) {
  RunState run = run_at(4);
  run.configuration = "\xff";
  EXPECT_EQ(writer_.commit(ticket_, run, {shard(0), shard(1)}).error().problem, "configuration is not UTF-8");
  run = run_at(4);
  run.generator_state = "\xff";
  EXPECT_EQ(writer_.commit(ticket_, run, {shard(0), shard(1)}).error().problem, "generator state is not UTF-8");
}

}  // namespace
}  // namespace fivefold
