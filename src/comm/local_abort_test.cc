// Whoever ends first, all ranks end, and nobody reads the buffers of a rank that has left.
#include <gtest/gtest.h>

#include <atomic>
#include <latch>

#include "comm/comm_fault_support.h"
#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

using comm_test::buffer_of;
using comm_test::Ended;
using comm_test::expect_text;
using comm_test::Outcome;
using comm_test::random_delays;
using comm_test::run;

const CallOptions kAsync{.mode = Mode::kAsync};

TEST(LocalAbort, AbortWakesEveryKindOfWaiter) {
  const Outcome outcome =
      run(6, {.timeout_s = 1e6, .send_mode = SendMode::kRendezvous}, [](int rank, Communicator& comm) {
        std::vector<float> x(4);
        const Group others = rank < 3 ? comm.create_group(GroupKind::kDp, 0, {0, 1, 2}) : comm.world();
        switch (rank) {
          case 0:
            return comm.barrier(others, Purpose::kControl), void();
          case 1:
            comm.barrier(others, Purpose::kControl, kAsync).wait_host();
            return;
          case 2: {  // a chain of async calls: all of them end
            const Work first = comm.recv(comm.world(), buffer_of(x), 5, Purpose::kActivations, kAsync);
            const Work second = comm.barrier(others, Purpose::kControl, kAsync);
            EXPECT_THROW(second.wait_host(), Aborted);
            EXPECT_THROW(first.wait_host(), Aborted);
            EXPECT_THROW(comm.barrier(others, Purpose::kControl), Aborted);
            return;
          }
          case 3:
            comm.send(comm.world(), buffer_of(x), 5, Purpose::kActivations);
            return;
          case 4:
            comm.recv(comm.world(), buffer_of(x), 5, Purpose::kActivations);
            return;
          default:
            for (int i = 0; i < 100; ++i) std::this_thread::yield();
            comm.abort("SIGTERM after a lost peer");
        }
      });
  EXPECT_EQ(outcome.error->rank(), 5);
  expect_text(outcome, "SIGTERM after a lost peer");
  EXPECT_EQ(outcome.error->cause(), nullptr);
  EXPECT_EQ(outcome.num(Ended::kAborted), 4);
}

// A rank dies at a random point of a stream of collectives, before entry or with peers already reading its buffers. The
// buffers are freed as the exception unwinds: what a peer still reads would be found by the address sanitizer.
TEST(LocalAbort, DyingAnywhereLeavesNoReaderBehind) {
  struct Killed : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  for (unsigned run_index = 0; run_index < 200; ++run_index) {
    const int victim = static_cast<int>(run_index % 3);
    const auto point = run_index % 2 == 0 ? HookPoint::kBeforeEntry : HookPoint::kBeforeData;
    const auto delay = random_delays(run_index);
    std::atomic<int> calls{0};
    const int fatal_call = static_cast<int>(run_index / 8 % 12);
    LocalOptions options{.timeout_s = 30,
                         .send_mode = run_index % 4 < 2 ? SendMode::kBuffered : SendMode::kRendezvous,
                         .hook = [&](HookedCall& call) {
                           delay(call);
                           if (call.rank == victim && call.point == point && calls++ == fatal_call)
                             throw Killed(call.record.name());
                         }};
    const Outcome outcome = run(3, options, [](int rank, Communicator& comm) {
      for (int i = 0; i < 10; ++i) {
        std::vector<float> x(3000, 1.0f), part(1000), all(9000), in(3000);
        const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
        comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kGradients);
        comm.reduce_scatter(comm.world(), buffer_of(x), buffer_of(part), Reduction::kSum, Purpose::kGradients);
        comm.all_gather(comm.world(), buffer_of(x), buffer_of(all), Purpose::kParameters);
        comm.barrier(comm.world(), Purpose::kControl);
        comm.batch_send_recv(
            comm.world(),
            {{CollectiveKind::kSend, buffer_of(x), next}, {CollectiveKind::kRecv, buffer_of(in), previous}},
            Purpose::kActivations);
      }
    });
    ASSERT_TRUE(outcome.error.has_value()) << run_index;
    EXPECT_EQ(outcome.error->rank(), victim);
    EXPECT_THROW(std::rethrow_exception(outcome.error->cause()), Killed);
    EXPECT_EQ(outcome.num(Ended::kOther), 1);
    EXPECT_EQ(outcome.num(Ended::kAborted), 2);
  }
}

// The two narrow windows of the above, held open by the hook.
TEST(LocalAbort, WhoEntersAfterAnAbortTouchesNoData) {
  // Ranks 0 and 1 have entered, the abort throws them out, and their buffers are gone when rank 2 enters at last.
  std::latch others_left(2);
  std::atomic<bool> waiting{false}, touched{false};
  const LocalOptions options{.timeout_s = 30, .hook = [&](const HookedCall& call) {
                               if (call.rank != 2 || call.point == HookPoint::kCalled) return;
                               if (call.point == HookPoint::kBeforeData) touched = true;
                               waiting = true;
                               others_left.wait();
                             }};
  const Outcome outcome = run(3, options, [&](int rank, Communicator& comm) {
    std::vector<float> x(1000);
    const Work work = comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kGradients, kAsync);
    if (rank == 1) {
      while (!waiting) std::this_thread::yield();
      comm.abort("stop");
    }
    try {
      work.wait_host();
    } catch (const Aborted&) {
      x = {};
      if (rank != 2) others_left.count_down();
      throw;
    }
  });
  EXPECT_EQ(outcome.num(Ended::kAborted), 3);
  EXPECT_FALSE(touched);
}

TEST(LocalAbort, ARendezvousSenderStaysWhileItsBufferIsRead) {
  // The receiver has taken the send when the abort comes, and copies after a while.
  std::atomic<bool> taken{false}, sender_left{false}, left_too_early{false};
  const LocalOptions options{.timeout_s = 30, .send_mode = SendMode::kRendezvous, .hook = [&](const HookedCall& call) {
                               if (call.rank != 0 || call.point != HookPoint::kBeforeData) return;
                               taken = true;
                               for (int i = 0; i < 2000; ++i) std::this_thread::yield();
                               left_too_early = sender_left.load();
                             }};
  const Outcome outcome = run(3, options, [&](int rank, Communicator& comm) {
    std::vector<float> x(1000);
    if (rank == 0) comm.recv(comm.world(), buffer_of(x), 1, Purpose::kActivations);
    if (rank == 1) {
      try {
        comm.send(comm.world(), buffer_of(x), 0, Purpose::kActivations);
      } catch (const Aborted&) {
        sender_left = true;
        throw;
      }
    }
    if (rank == 2) {
      while (!taken) std::this_thread::yield();
      comm.abort("stop");
    }
  });
  EXPECT_EQ(outcome.error->rank(), 2);
  EXPECT_FALSE(left_too_early);
}

TEST(LocalAbortDeathTest, AStuckThreadEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stuck = [] {
    run_ranks(2, {.timeout_s = 0.1, .exit_grace_s = 0.1}, [](int rank, Communicator& comm) {
      std::latch never(1);
      if (rank == 1) never.wait();
      comm.barrier(comm.world(), Purpose::kControl);
    });
  };
  EXPECT_EXIT(stuck(), testing::ExitedWithCode(4), "rank 1 never entered barrier #0 of world(.|\n)*did not end within");
}

}  // namespace
}  // namespace fivefold
