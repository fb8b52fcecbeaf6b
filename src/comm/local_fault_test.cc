// Missing, late, throwing and disagreeing ranks: all ranks end, one error is reported, and it says who and where.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <optional>

#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

using comm_test::buffer_of;
using comm_test::random_delays;

const LocalOptions kShort{.timeout_s = 30};
const CallOptions kAsync{.mode = Mode::kAsync};

// How a rank's function ended.
enum class Ended { kNormally, kCommError, kAborted, kOther };

struct Outcome {
  std::vector<Ended> ranks;
  std::optional<RankError> error;

  int num(Ended ended) const { return static_cast<int>(std::count(ranks.begin(), ranks.end(), ended)); }
};

Outcome run(int n, const LocalOptions& options, const std::function<void(int, Communicator&)>& fn) {
  Outcome outcome{.ranks = std::vector<Ended>(static_cast<size_t>(n), Ended::kNormally), .error = std::nullopt};
  try {
    run_ranks(n, options, [&](int rank, Communicator& comm) {
      Ended& ended = outcome.ranks[static_cast<size_t>(rank)];
      try {
        fn(rank, comm);
      } catch (const CommError&) {
        ended = Ended::kCommError;
        throw;
      } catch (const Aborted&) {
        ended = Ended::kAborted;
        throw;
      } catch (...) {
        ended = Ended::kOther;
        throw;
      }
    });
  } catch (const RankError& e) {
    outcome.error = e;
  }
  return outcome;
}

void expect_text(const Outcome& outcome, const std::string& part) {
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_NE(std::string(outcome.error->what()).find(part), std::string::npos)
      << "expected: " << part << "\nin: " << outcome.error->what();
}

TEST(LocalFault, AThrowingRankEndsTheOthers) {
  const Outcome outcome = run(4, kShort, [](int rank, Communicator& comm) {
    std::vector<float> x(10);
    comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kGradients);
    if (rank == 1) throw std::runtime_error("out of memory in layer 3");
    while (true) comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kGradients);
  });
  EXPECT_EQ(outcome.error->rank(), 1);
  EXPECT_STREQ(outcome.error->what(), "rank 1: out of memory in layer 3");
  EXPECT_THROW(std::rethrow_exception(outcome.error->cause()), std::runtime_error);
  EXPECT_EQ(outcome.num(Ended::kAborted), 3);
  EXPECT_EQ(outcome.num(Ended::kOther), 1);
}

TEST(LocalFault, DifferentSizesNameTheOddRank) {
  const Outcome outcome = run(4, kShort, [](int rank, Communicator& comm) {
    const Group dp = comm.create_group(GroupKind::kDp, 2, {3, 2, 1, 0});
    std::vector<float> x(rank == 0 ? 20 : 10);
    comm.barrier(dp, Purpose::kControl);
    comm.all_reduce(dp, buffer_of(x), Reduction::kSum, Purpose::kGradients);
  });
  expect_text(outcome,
              "rank 0 entered all_reduce #1 of dp[2] (80 bytes of fp32, gradients), but rank 3 entered "
              "all_reduce #1 of dp[2] (40 bytes of fp32, gradients)");
  EXPECT_EQ(outcome.num(Ended::kCommError), 1);
  EXPECT_EQ(outcome.num(Ended::kAborted), 3);
}

TEST(LocalFault, DifferencesOfEveryKindAreNoticed) {
  using Act = std::function<void(Communicator&, std::vector<float>&)>;
  const Act usual = [](Communicator& comm, std::vector<float>& x) {
    comm.broadcast(comm.world(), buffer_of(x), 0, Purpose::kParameters);
  };
  const std::vector<std::pair<Act, std::string>> odd = {
      {[](Communicator& comm, std::vector<float>& x) {
         comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kParameters);
       },
       "rank 2 entered all_reduce #0 of world[0] (16 bytes of fp32, parameters)"},
      {[](Communicator& comm, std::vector<float>& x) {
         comm.broadcast(comm.world(), buffer_of(x), 1, Purpose::kParameters);
       },
       "rank 2 entered broadcast #0 of world[0] (16 bytes of fp32, parameters, root 1)"},
      {[](Communicator& comm, std::vector<float>& x) {
         const Buffer as_ints{.pointer = x.data(), .bytes = 16, .dtype = DType::kInt32};
         comm.broadcast(comm.world(), as_ints, 0, Purpose::kParameters);
       },
       "rank 2 entered broadcast #0 of world[0] (16 bytes of int32, parameters, root 0)"},
      {[](Communicator& comm, std::vector<float>& x) { comm.broadcast(comm.world(), buffer_of(x), 0, Purpose::kHash); },
       "rank 2 entered broadcast #0 of world[0] (16 bytes of fp32, hash, root 0)"},
      {[](Communicator& comm, std::vector<float>&) { comm.barrier(comm.world(), Purpose::kParameters); },
       "rank 2 entered barrier #0 of world[0] (0 bytes of fp32, parameters)"},
  };
  for (const auto& [act, text] : odd) {
    const Outcome outcome = run(3, kShort, [&](int rank, Communicator& comm) {
      std::vector<float> x(4);
      (rank == 2 ? act : usual)(comm, x);
    });
    expect_text(outcome, text);
    expect_text(outcome, ", but rank 0 entered broadcast #0 of world[0] (16 bytes of fp32, parameters, root 0)");
    EXPECT_EQ(outcome.num(Ended::kCommError), 1);
  }
}

TEST(LocalFault, RaggedCountsMustAgreePairByPair) {
  const Outcome outcome = run(2, kShort, [](int rank, Communicator& comm) {
    std::vector<float> x(4), y(4);
    // Rank 0 keeps 1 and sends 3; rank 1 expects 2 from it.
    const std::vector<int64_t> send = rank == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{3, 1};
    const std::vector<int64_t> recv = rank == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{2, 2};
    comm.all_to_all(comm.world(), buffer_of(x), send, buffer_of(y), recv, Purpose::kActivations);
  });
  expect_text(outcome, "rank 1 expects 2 elements from rank 0 in all_to_all #0 of world[0], but rank 0 sends 3");
}

TEST(LocalFault, TransfersMustAgreeInSize) {
  for (const SendMode mode : {SendMode::kBuffered, SendMode::kRendezvous}) {
    const Outcome outcome = run(2, {.timeout_s = 30, .send_mode = mode}, [](int rank, Communicator& comm) {
      std::vector<float> x(rank == 0 ? 4 : 5);
      if (rank == 0) {
        comm.send(comm.world(), buffer_of(x), 1, Purpose::kActivations);
        comm.barrier(comm.world(), Purpose::kControl);
      } else {
        comm.recv(comm.world(), buffer_of(x), 0, Purpose::kActivations);
      }
    });
    expect_text(outcome,
                "rank 1 entered recv #0 of world[0] from rank 0 (20 bytes of fp32), but rank 0 entered send #0 of "
                "world[0] to rank 1 (16 bytes of fp32)");
  }
}

TEST(LocalFault, DifferentMembersOfOneGroupAreNoticed) {
  const Outcome outcome = run(3, kShort, [](int rank, Communicator& comm) {
    if (rank > 0) comm.barrier(comm.create_group(GroupKind::kShard, 1, {1, 2}), Purpose::kControl);
    comm.barrier(comm.world(), Purpose::kControl);
    if (rank == 0) comm.create_group(GroupKind::kShard, 1, {0, 2});
    comm.barrier(comm.world(), Purpose::kControl);
  });
  EXPECT_EQ(outcome.error->rank(), 0);
  expect_text(outcome, "rank 0 makes shard[1] of the ranks {0, 2}, but another rank made it of {1, 2}");
}

// A rank that does not come until the others have ended, and where it is meanwhile.
TEST(LocalFault, ASleepingRankIsNamed) {
  std::latch others_ended(3);
  const Outcome outcome = run(4, {.timeout_s = 0.2}, [&](int rank, Communicator& comm) {
    std::vector<float> x(4), all(16);
    const Group tp = comm.create_group(GroupKind::kTp, 1, {0, 1, 2, 3});
    comm.barrier(comm.world(), Purpose::kControl);
    for (int i = 0; i < 12; ++i) comm.all_gather(tp, buffer_of(x), buffer_of(all), Purpose::kParameters);
    if (rank == 3) {
      others_ended.wait();
      return;
    }
    try {
      comm.all_gather(tp, buffer_of(x), buffer_of(all), Purpose::kParameters);
    } catch (...) {
      others_ended.count_down();
      throw;
    }
  });
  expect_text(outcome,
              "rank 3 never entered all_gather #12 of tp[1]; it is outside any call, after all_gather #11 of tp[1]");
  expect_text(outcome, "\n  rank 1 is in all_gather #12 of tp[1], waiting for rank 3");
  EXPECT_EQ(outcome.num(Ended::kCommError), 1);
  EXPECT_EQ(outcome.num(Ended::kAborted), 2);
}

TEST(LocalFault, ARankStuckElsewhereIsFollowedToTheRootOfIt) {
  // Rank 0 waits for 1 in tp[0]; rank 1 waits for a send of 2 that never comes; rank 2 is busy outside.
  std::latch others_ended(2);
  const Outcome outcome = run(3, {.timeout_s = 0.2}, [&](int rank, Communicator& comm) {
    std::vector<float> x(4);
    try {
      if (rank < 2) {
        const Group tp = comm.create_group(GroupKind::kTp, 0, {0, 1});
        const Group pp = rank == 1 ? comm.create_group(GroupKind::kPp, 0, {1, 2}) : tp;
        if (rank == 1) comm.recv(pp, buffer_of(x), 1, Purpose::kActivations);
        comm.all_reduce(tp, buffer_of(x), Reduction::kSum, Purpose::kActivations);
      } else {
        others_ended.wait();
      }
    } catch (...) {
      others_ended.count_down();
      throw;
    }
  });
  expect_text(outcome, "rank 2 never entered send #0 of pp[0] to rank 1; it is outside any call, and has made none");
  expect_text(outcome, "\n  rank 0 is in all_reduce #0 of tp[0], waiting for rank 1");
  expect_text(outcome, "\n  rank 1 is in recv #0 of pp[0] from rank 2, waiting for rank 2");
}

TEST(LocalFault, CrossedOrderOfTwoGroupsIsADeadlock) {
  const Outcome outcome = run(2, {.timeout_s = 0.2}, [](int rank, Communicator& comm) {
    const Group tp = comm.create_group(GroupKind::kTp, 0, {0, 1}), dp = comm.create_group(GroupKind::kDp, 0, {0, 1});
    comm.barrier(rank == 0 ? tp : dp, Purpose::kControl);
    comm.barrier(rank == 0 ? dp : tp, Purpose::kControl);
  });
  expect_text(outcome, "deadlock: ");
  expect_text(outcome, "rank 0 is in barrier #0 of tp[0], waiting for rank 1");
  expect_text(outcome, "rank 1 is in barrier #0 of dp[0], waiting for rank 0");
}

TEST(LocalFault, ARankThatEndedIsNoticedWithoutTimeout) {
  const Outcome outcome = run(3, {.timeout_s = 1e6}, [](int rank, Communicator& comm) {
    comm.barrier(comm.world(), Purpose::kControl);
    if (rank != 2) comm.barrier(comm.world(), Purpose::kControl);
  });
  expect_text(outcome, "rank 2 never entered barrier #1 of world[0]; it is at its end, after barrier #0 of world[0]");
  EXPECT_EQ(outcome.ranks[2], Ended::kNormally);
  EXPECT_EQ(outcome.num(Ended::kCommError), 1);
}

TEST(LocalFault, AbortWakesEveryKindOfWaiter) {
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
TEST(LocalFault, DyingAnywhereLeavesNoReaderBehind) {
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
                         .hook = [&](HookPoint p, int rank, const CallRecord& record) {
                           delay(p, rank, record);
                           if (rank == victim && p == point && calls++ == fatal_call) throw Killed(record.name());
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

TEST(LocalFaultDeathTest, AStuckThreadEndsTheProcess) {
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
