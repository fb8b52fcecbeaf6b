#include "comm/flight_recorder.h"

#include <gtest/gtest.h>

#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

CallRecord gather(int64_t sequence) {
  return {.kind = CollectiveKind::kAllGather,
          .group_kind = GroupKind::kTp,
          .group_index = 1,
          .sequence = sequence,
          .bytes = 4096,
          .dtype = DType::kBFloat16,
          .purpose = Purpose::kParameters};
}

TEST(FlightRecorder, NamesCalls) {
  EXPECT_EQ(gather(1203).name(), "all_gather #1203 of tp[1]");
  CallRecord record{.kind = CollectiveKind::kRecv, .group_kind = GroupKind::kPp, .peer = 4, .sequence = 88};
  EXPECT_EQ(record.name(), "recv #88 of pp[0] from rank 4");
  record.kind = CollectiveKind::kSend;
  EXPECT_EQ(record.name(), "send #88 of pp[0] to rank 4");
}

TEST(FlightRecorder, KeepsTheLastCallsInOrder) {
  FlightRecorder recorder(3);
  EXPECT_FALSE(recorder.head().has_value());
  for (int64_t i = 0; i < 5; ++i) {
    CallRecord record = gather(i);
    EXPECT_EQ(recorder.add(record), i);
  }
  const auto records = recorder.records();
  ASSERT_EQ(records.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(records[i].sequence, static_cast<int64_t>(i) + 2);
}

TEST(FlightRecorder, FollowsStatesAndTimes) {
  FlightRecorder recorder(2);
  CallRecord first = gather(0), second = gather(1), third = gather(2);
  const int64_t first_ticket = recorder.add(first), second_ticket = recorder.add(second);
  recorder.update(second_ticket, second, CallState::kExecuting);
  recorder.update(second_ticket, second, CallState::kDone);
  recorder.add(third);
  // The first call has left the ring, but is still where the rank is.
  recorder.update(first_ticket, first, CallState::kExecuting);
  EXPECT_EQ(recorder.head()->sequence, 0);
  EXPECT_EQ(recorder.head()->state, CallState::kExecuting);
  const auto records = recorder.records();
  EXPECT_EQ(records[0].sequence, 1);
  EXPECT_EQ(records[0].state, CallState::kDone);
  EXPECT_EQ(records[1].state, CallState::kQueued);
  EXPECT_LE(records[0].queued_s, records[0].started_s);
  EXPECT_LE(records[0].started_s, records[0].ended_s);
}

TEST(FlightRecorder, PrintsALinePerCall) {
  FlightRecorder recorder(8);
  CallRecord record = gather(7);
  recorder.update(recorder.add(record), record, CallState::kFailed);
  const std::string text = recorder.to_string();
  for (const char* part : {"all_gather #7 of tp[1]", "parameters", "bf16", "4,096", "failed"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(FlightRecorder, RecordsWhatARankCalled) {
  run_ranks(2, {.timeout_s = 30, .recorded_calls = 4}, [](int, Communicator& comm) {
    std::vector<float> x(6);
    const Group tp = comm.create_group(GroupKind::kTp, 3, {0, 1});
    for (int i = 0; i < 6; ++i) comm.all_reduce(tp, comm_test::buffer_of(x), Reduction::kSum, Purpose::kGradients);
    comm.barrier(comm.world(), Purpose::kControl);
    const auto records = comm.flight_recorder().records();
    ASSERT_EQ(records.size(), 4u);
    EXPECT_EQ(records[2].name(), "all_reduce #5 of tp[3]");
    EXPECT_EQ(records[2].bytes, 24);
    EXPECT_EQ(records[3].name(), "barrier #0 of world[0]");
    for (const auto& record : records) EXPECT_EQ(record.state, CallState::kDone);
  });
}

}  // namespace
}  // namespace fivefold
