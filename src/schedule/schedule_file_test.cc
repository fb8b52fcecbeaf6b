#include "schedule/schedule_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "schedule/generate.h"
#include "schedule/transfers.h"

namespace fivefold {
namespace {

struct Shape {
  ScheduleKind kind;
  int p, v, m;
};
constexpr Shape kShapes[] = {
    {ScheduleKind::kNaive, 1, 1, 1},     {ScheduleKind::kNaive, 3, 1, 2},       {ScheduleKind::kGPipe, 2, 1, 5},
    {ScheduleKind::k1F1B, 4, 1, 8},      {ScheduleKind::kInterleaved, 2, 3, 4}, {ScheduleKind::kInterleaved, 4, 2, 8},
    {ScheduleKind::kZb1p, 4, 1, 6},      {ScheduleKind::kZb2p, 3, 1, 12},       {ScheduleKind::kZbv, 4, 2, 11},
    {ScheduleKind::kVHalf, 5, 2, 7},     {ScheduleKind::kVMin, 3, 2, 4},        {ScheduleKind::kDualPipeV, 4, 2, 10},
    {ScheduleKind::kDualPipeV, 1, 2, 3},
};

Schedule without_joins(Schedule schedule) {
  for (auto& actions : schedule.ranks)
    for (ScheduleAction& action : actions) action.joined = false;
  return schedule;
}

TEST(ScheduleFile, TextRoundTrip) {
  for (const Shape& s : kShapes) {
    const Schedule schedule = *generate(s.kind, s.p, s.v, s.m);
    const auto again = read_schedule_text(write_schedule_text(schedule), "test");
    ASSERT_TRUE(again.ok()) << again.error().message();
    EXPECT_EQ(*again, schedule) << to_string(s.kind);
    // Computations only: the same transfers are added again.
    const auto added = read_schedule_text(write_schedule_text(without_transfers(schedule)), "test");
    ASSERT_TRUE(added.ok()) << added.error().message();
    EXPECT_EQ(*added, schedule) << to_string(s.kind);
  }
}

TEST(ScheduleFile, CsvRoundTrip) {
  for (const Shape& s : kShapes) {
    const Schedule schedule = *generate(s.kind, s.p, s.v, s.m);
    const auto all = read_schedule_csv(write_schedule_csv(schedule, CsvContent::kAll), "test");
    ASSERT_TRUE(all.ok()) << all.error().message();
    EXPECT_EQ(*all, without_joins(schedule)) << to_string(s.kind);
    const auto added = read_schedule_csv(write_schedule_csv(schedule, CsvContent::kComputations), "test");
    ASSERT_TRUE(added.ok()) << added.error().message();
    EXPECT_EQ(*added, schedule) << to_string(s.kind);
  }
}

TEST(ScheduleFile, CsvOfAllActions) {
  // Rank 0 has virtual stages 0 and 3, rank 1 has 1 and 2.
  const Schedule schedule = *generate(ScheduleKind::kZbv, 2, 2, 1);
  EXPECT_EQ(write_schedule_csv(schedule, CsvContent::kAll),
            "0F0,0SEND_F0,3RECV_F0,3F0,3I0,3SEND_B0,3W0,0RECV_B0,0I0,0W0\n"
            "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2I0,2W0,1I0,1SEND_B0,1W0\n");
  EXPECT_NE(
      write_schedule_csv(*generate(ScheduleKind::kDualPipeV, 1, 2, 2), CsvContent::kAll).find("(1F1;0B0)OVERLAP_F_B"),
      std::string::npos);
}

TEST(ScheduleFile, CsvOfPyTorchIsReadAsItStands) {
  // Idle slots, blanks, Windows line ends, actions on parameters, blank lines at the end.
  const auto schedule =
      read_schedule_csv("0UNSHARD,0F0,,0F1,,,0B0, 0B1 ,0REDUCE_GRAD,0RESHARD\r\n,1F0,1B0,1F1,1B1,\r\n\r\n", "test");
  ASSERT_TRUE(schedule.ok()) << schedule.error().message();
  EXPECT_EQ(*schedule, *generate(ScheduleKind::k1F1B, 2, 1, 2));
}

TEST(ScheduleFile, TextIsForPeople) {
  const auto schedule = read_schedule_text(
      "# two ranks, one microbatch\n\npipeline ranks=2 chunks=1 microbatches=1 placement=loop  # header\n"
      "rank 0: F0.0 SendF0>1   RecvB0<1 BW0\r\n\n  rank 1: RecvF0<0 F0\tBW0 SendB0>0 # the end",
      "test");
  ASSERT_TRUE(schedule.ok()) << schedule.error().message();
  EXPECT_EQ(*schedule, *generate(ScheduleKind::k1F1B, 2, 1, 1));
}

// Files that torch.distributed.pipelining (2.13) writes for 4 ranks and 8 microbatches, from the order that its own
// schedule classes compute: the same orders as ours, which were written from the papers and DeepSeek's DualPipe.
TEST(ScheduleFile, FilesOfPyTorchAreTheGeneratedSchedules) {
  const auto file = [](const std::string& name) {
    const std::ifstream stream(FIVEFOLD_SOURCE_DIR "/src/schedule/testdata/" + name);
    EXPECT_TRUE(stream.good()) << name;
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
  };
  const auto expect_equal = [&](const std::string& name, ScheduleKind kind) {
    const auto schedule = read_schedule_csv(file(name), name);
    ASSERT_TRUE(schedule.ok()) << schedule.error().message();
    EXPECT_EQ(write_schedule_text(*schedule), write_schedule_text(*generate(kind, 4, 2, 8)));
  };
  expect_equal("pytorch-interleaved.csv", ScheduleKind::kInterleaved);
  expect_equal("pytorch-zbv.csv", ScheduleKind::kZbv);
  expect_equal("pytorch-dualpipev.csv", ScheduleKind::kDualPipeV);
  // PyTorch's own transfers stand elsewhere and pass the check too.
  const auto with_transfers = read_schedule_csv(file("pytorch-dualpipev-comms.csv"), "comms");
  ASSERT_TRUE(with_transfers.ok()) << with_transfers.error().message();
  EXPECT_EQ(without_transfers(*with_transfers), without_transfers(*generate(ScheduleKind::kDualPipeV, 4, 2, 8)));
}

std::string text_error(const std::string& text) {
  const auto schedule = read_schedule_text(text, "s.txt");
  return schedule.ok() ? "accepted" : schedule.error().message();
}
std::string csv_error(const std::string& text) {
  const auto schedule = read_schedule_csv(text, "s.csv");
  return schedule.ok() ? "accepted" : schedule.error().message();
}

TEST(ScheduleFile, TextErrorsGiveLineAndColumn) {
  const std::string header = "pipeline ranks=1 chunks=1 microbatches=1 placement=loop\n";
  const std::string actions =
      " (F, BW, B, W, SendF, RecvF, SendB or RecvB, chunk and microbatch, like: F3, F0.3, SendF0.3>1)";
  const std::string like = " (like: pipeline ranks=4 chunks=1 microbatches=8 placement=loop)";
  const std::pair<std::string, std::string> cases[] = {
      {"", "s.txt: has no schedule (the first line is like: pipeline ranks=4 chunks=1 microbatches=8 placement=loop)"},
      {"\n# nothing\n",
       "s.txt: has no schedule (the first line is like: pipeline ranks=4 chunks=1 microbatches=8 placement=loop)"},
      {"rank 0: F0 BW0\n", "s.txt line 1 column 1: 'rank' where the header should be" + like},
      {"pipeline chunks=1", "s.txt line 1 column 10: 'chunks=1' where ranks= should be"},
      {"pipeline ranks=0", "s.txt line 1 column 10: 'ranks=0' is no number of ranks (1 to 4096)"},
      {"pipeline ranks=99999999999", "s.txt line 1 column 10: 'ranks=99999999999' is no number of ranks (1 to 4096)"},
      {"pipeline ranks=2x", "s.txt line 1 column 10: 'ranks=2x' is no number of ranks (1 to 4096)"},
      {"pipeline ranks=4096 chunks=256 microbatches=1 placement=v",
       "s.txt line 1 column 31: 1048576 virtual stages are too many (at most 16384)"},
      {"pipeline ranks=1 chunks=1 microbatches=1 placement=w",
       "s.txt line 1 column 42: 'placement=w' where the placement should be (placement=loop or placement=v)"},
      {"pipeline ranks=1 chunks=1 microbatches=1 placement=loop x\n",
       "s.txt line 1 column 57: 'x' after the end of the line"},
      {header, "s.txt: has 0 of 1 ranks (a line per rank, from rank 0)"},
      {header + "rank 1: F0", "s.txt line 2 column 1: the line should begin with 'rank 0:'"},
      {header + "rank 0: F0 BW0\nrank 1: F0 BW0", "s.txt line 3 column 1: a line after the last rank"},
      {header + "rank 0: F0 X0", "s.txt line 2 column 12: 'X0' is no action" + actions},
      {header + "rank 0: F0 BW", "s.txt line 2 column 12: 'BW' is no action" + actions},
      {header + "rank 0: F0 BW0.", "s.txt line 2 column 12: 'BW0.' is no action" + actions},
      {header + "rank 0: F-1 BW0", "s.txt line 2 column 9: 'F-1' is no action" + actions},
      {header + "rank 0: F0, BW0", "s.txt line 2 column 9: 'F0,' is no action" + actions},
      {header + "rank 0: F99999 BW0", "s.txt line 2 column 9: 'F99999' is no action" + actions},
      {header + "rank 0: F0 SendF0", "s.txt line 2 column 12: 'SendF0' says no rank (like: SendF3>1, RecvF3<0)"},
      {header + "rank 0: F0 SendF0<0", "s.txt line 2 column 12: 'SendF0<0' says no rank (like: SendF3>1, RecvF3<0)"},
      {header + "rank 0: F0 SendF0>", "s.txt line 2 column 12: 'SendF0>' says no rank"},
      {header + "rank 0: F0 +BW0", "s.txt line 2 column 12: '+BW0': only transfers are joined"},
      {header + "rank 0: F0&F0", "s.txt line 2 column 9: 'F0&F0': F is overlapped with a BW (like: F0.4&BW1.2)"},
      {header + "rank 0: F0 F0 BW0", "s.txt: schedule rank 0 position 1: F(chunk 0, microbatch 0) is there twice"},
      {header + "rank 0: BW0 F0",
       "s.txt: schedule rank 0 position 0: BW(chunk 0, microbatch 0) comes before its forward"},
      {header + "rank 0: F0 SendF0>0 BW0",
       "s.txt: schedule rank 0 position 1: SendF(chunk 0, microbatch 0, to rank 0) has no other end: the model ends "
       "there, or goes on on the same rank"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(text_error(text), message) << text;
}

TEST(ScheduleFile, CsvErrorsGiveLineAndCell) {
  const std::string like = " (like: 2F0, 2I0, 2W0, 2B0, 2SEND_F0, 2RECV_F0, 2SEND_B0, 2RECV_B0, (2F4;5B1)OVERLAP_F_B)";
  const std::pair<std::string, std::string> cases[] = {
      {"", "s.csv: has no action (a line per rank, like: 0F0,0F1,0B0,0B1)"},
      {"\n\n", "s.csv: has no action (a line per rank, like: 0F0,0F1,0B0,0B1)"},
      {"0F0,0X0", "s.csv line 1 cell 2: '0X0' is no action" + like},
      {"0F0,0B", "s.csv line 1 cell 2: '0B' is no action" + like},
      {"0F0\n1F0,1B0x", "s.csv line 2 cell 2: '1B0x' is no action" + like},
      {"0F0,F0", "s.csv line 1 cell 2: 'F0' is no action" + like},
      {"0F0,99999F0", "s.csv line 1 cell 2: '99999F0' is no action" + like},
      {"0F0,0F99999", "s.csv line 1 cell 2: '0F99999' is no action" + like},
      {"0F0,(0F1;0B0)", "s.csv line 1 cell 2: '(0F1;0B0)' is no action" + like},
      {"0F0,(0F1;0B0)OVERLAP", "s.csv line 1 cell 2: '(0F1;0B0)OVERLAP' is no action" + like},
      {"0F0,(0F1,0B0)OVERLAP_F_B", "s.csv line 1 cell 2: '(0F1' is no action" + like},
      {"0F0,(0B0;0F1)OVERLAP_F_B",
       "s.csv line 1 cell 2: '(0B0;0F1)OVERLAP_F_B' overlaps other than F with B (first F, then B)"},
      {"0F0,2F0,0B0,2B0\n1F0,1B0",
       "s.csv: 3 stages on 2 ranks (lines): not the same number on each (the number of stages is a multiple of the "
       "number of lines)"},
      {"0F0,1F0,0B0,1B0\n2F0,3F0,2B0,3B0",
       "s.csv line 1 cell 2: this stage is on another rank when stages go round the ranks, and line 1 cell 2 when they "
       "go in a V (stage s of p ranks is on rank s mod p, or on the way back of a V on p - 1 - s mod p)"},
      {"0F0,0B0\n1F0", "s.csv: schedule rank 1 position 1: BW(chunk 0, microbatch 0) is missing"},
      {"0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0",
       "s.csv: schedule rank 0 position 2: BW(chunk 0, microbatch 0) comes before the gradient of its output is "
       "received"},
      {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
       "s.csv: schedule rank 0 position 1: BW(chunk 0, microbatch 0) waits for ever for what another rank should "
       "compute before"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(csv_error(text), message) << text;
}

}  // namespace
}  // namespace fivefold
