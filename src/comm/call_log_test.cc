#include "comm/call_log.h"

#include <gtest/gtest.h>

#include <atomic>

#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

using comm_test::buffer_of;

const LocalOptions kShort{.timeout_s = 30};
const CallOptions kAsync{.mode = Mode::kAsync};

void all_reduce(Communicator& comm, const CallOptions& options, Work& work) {
  static thread_local std::vector<float> x(16, 1.0f);
  work = comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kGradients, options);
}

TEST(CallLog, IsOffUntilSwitchedOnAndSaysWhatWasCalled) {
  run_ranks(2, kShort, [](int, Communicator& comm) {
    Work work;
    all_reduce(comm, {}, work);
    EXPECT_TRUE(comm.call_log().take().empty());
    comm.call_log().switch_to(true);
    all_reduce(comm, {}, work);
    comm.call_log().switch_to(false);
    comm.barrier(comm.world(), Purpose::kControl);
    const std::vector<LoggedCall> calls = comm.call_log().take();
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].kind, CollectiveKind::kAllReduce);
    EXPECT_EQ(calls[0].group, GroupKind::kWorld);
    EXPECT_EQ(calls[0].purpose, Purpose::kGradients);
    EXPECT_EQ(calls[0].bytes, 64);
    EXPECT_LT(calls[0].begin_s, calls[0].end_s);
    EXPECT_TRUE(comm.call_log().take().empty());
  });
}

// The caller of a sync call stands still for all of it.
TEST(CallLog, SyncCallsAreWaitedForWhole) {
  run_ranks(2, kShort, [](int, Communicator& comm) {
    comm.call_log().switch_to(true);
    Work work;
    for (int i = 0; i < 5; ++i) all_reduce(comm, {}, work);
    const std::vector<LoggedCall> calls = comm.call_log().take();
    ASSERT_EQ(calls.size(), 5u);
    for (const LoggedCall& call : calls) EXPECT_NEAR(call.waited_s, call.end_s - call.begin_s, 1e-12);
  });
}

// Rank 1 comes when rank 0 has seen its own call begin and gone on without waiting: nothing of rank 0's call is waited
// for. A second call is waited for at once: from the wait's begin on, so not more than the call took.
TEST(CallLog, AsyncCallsAreHiddenUntilTheyAreWaitedFor) {
  std::atomic<bool> come{false};
  run_ranks(2, kShort, [&](int rank, Communicator& comm) {
    comm.call_log().switch_to(true);
    while (rank == 1 && !come) std::this_thread::yield();
    Work work;
    all_reduce(comm, kAsync, work);
    come = true;
    while (!work.done()) std::this_thread::yield();
    work.wait_host();  // complete: no wait
    std::vector<LoggedCall> calls = comm.call_log().take();
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].waited_s, 0);
    all_reduce(comm, kAsync, work);
    work.wait_host();
    calls = comm.call_log().take();
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_LE(calls[0].waited_s, calls[0].end_s - calls[0].begin_s + 1e-12);
  });
}

// What was made while the log was on is in it whenever it runs, and a wait for a later call counts for an earlier one.
TEST(CallLog, KeepsCallsThatAreUnderWay) {
  CallLog log;
  log.switch_to(true);
  EXPECT_TRUE(log.on());
  const double start = CallLog::now_s();
  {
    const CallLog::Wait wait(log);
  }
  const double end = CallLog::now_s();
  EXPECT_TRUE(log.take().empty());
  log.switch_to(false);
  // The call ran from before the wait to after it: all of the wait is its own.
  log.add({CollectiveKind::kSend, GroupKind::kPp, Purpose::kActivations, 8, start - 1, end + 1, 0});
  const std::vector<LoggedCall> calls = log.take();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_GT(calls[0].waited_s, 0);
  EXPECT_LE(calls[0].waited_s, end - start);
}

}  // namespace
}  // namespace fivefold
