// Snapshots of PyTorch's memory, in the pickles that CPython and PyTorch write and as JSON. The files hold what
// torch.cuda.memory._snapshot() returns: one segment of 1000 MiB with two blocks of 300 MiB from one place, 100 MiB of
// the loss, 300 MiB free; before, 900 MiB had been allocated and freed; then 786 MiB could not be had.
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "base/units.h"
#include "record/foreign_log.h"
#include "record/plain_data.h"

namespace fivefold {
namespace {

std::string testdata(const std::string& name) { return FIVEFOLD_SOURCE_DIR "/src/record/testdata/" + name; }

class SnapshotFile : public testing::TestWithParam<const char*> {};

TEST_P(SnapshotFile, BlocksPeaksAndTheFailedAllocation) {
  const Result<ForeignLog> log = read_foreign_log(testdata(GetParam()));
  ASSERT_TRUE(log.ok()) << log.error().message();
  EXPECT_EQ(log->kinds, std::vector{LogKind::kSnapshot});
  EXPECT_EQ(log->peak(LoggedMemoryKind::kAllocated), 900 * kMiB);
  EXPECT_EQ(log->peak(LoggedMemoryKind::kReserved), 1000 * kMiB);
  EXPECT_EQ(log->inactive_bytes, 300 * kMiB);
  EXPECT_EQ(log->inactive_blocks, 1);
  ASSERT_EQ(log->live.size(), 2U);
  EXPECT_EQ(log->live[0].count, 2);
  EXPECT_EQ(log->live[0].bytes, 300 * kMiB);
  EXPECT_EQ(log->live[0].where, "modeling.py:120 forward");
  EXPECT_EQ(log->live[1].where, "functional.py:3059 cross_entropy");
  ASSERT_EQ(log->out_of_memory.size(), 1U);
  EXPECT_EQ(log->out_of_memory[0].requested, 786 * kMiB);
  EXPECT_EQ(log->out_of_memory[0].free, 50 * kMiB);
  EXPECT_EQ(log->out_of_memory[0].allocated, 700 * kMiB);
  EXPECT_EQ(log->out_of_memory[0].unallocated, 300 * kMiB);
}

INSTANTIATE_TEST_SUITE_P(Formats, SnapshotFile,
                         testing::Values("snapshot-protocol-2.pickle", "snapshot-protocol-4.pickle", "snapshot.json"));

// An object with __reduce__: unpickling it calls print("run").
TEST(Pickle, WhatCallsSomethingIsRefused) {
  const Result<ForeignLog> log = read_foreign_log(testdata("calls.pickle"));
  ASSERT_FALSE(log.ok());
  EXPECT_NE(log.error().problem.find("more than build plain data"), std::string::npos) << log.error().message();
}

TEST(Pickle, EveryCutIsAnError) {
  const Result<MappedFile> file = MappedFile::open(testdata("snapshot-protocol-2.pickle"));
  ASSERT_TRUE(file.ok());
  const std::string_view whole = file->text();
  for (size_t size = 0; size + 1 < whole.size(); ++size)
    EXPECT_FALSE(read_pickle(whole.substr(0, size), "p").ok()) << size;
}

TEST(Pickle, NumbersAndSharing) {
  // pickle.dumps([-2, 70000, 2**40, -(2**40), 1.5, None, True, x, x], 2) with x = "ab", by CPython 3.11.
  const std::string bytes(
      "\x80\x02]q\x00(J\xfe\xff\xff\xffJp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x06\x00\x00\x00\x00\x00\xffG?"
      "\xf8\x00\x00\x00\x00\x00\x00N\x88X\x02\x00\x00\x00"
      "abq\x01h\x01"
      "e.",
      56);
  const Result<PlainData> data = read_pickle(bytes, "p");
  ASSERT_TRUE(data.ok()) << data.error().message();
  const auto& list = data->elements(data->root());
  ASSERT_EQ(list.size(), 9U);
  EXPECT_EQ(data->integer(list[0]), -2);
  EXPECT_EQ(data->integer(list[1]), 70000);
  EXPECT_EQ(data->integer(list[2]), int64_t{1} << 40);
  EXPECT_EQ(data->integer(list[3]), -(int64_t{1} << 40));
  EXPECT_EQ(data->kind(list[4]), PlainData::Kind::kReal);
  EXPECT_EQ(data->kind(list[5]), PlainData::Kind::kNone);
  EXPECT_EQ(data->text(list[7]), "ab");
  EXPECT_EQ(list[7], list[8]);
}

}  // namespace
}  // namespace fivefold
