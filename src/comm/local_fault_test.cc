// Missing, late, throwing and disagreeing ranks: all ranks end, one error is reported, and it says who and where.
#include <gtest/gtest.h>

#include <latch>

#include "comm/comm_fault_support.h"
#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

using comm_test::buffer_of;
using comm_test::Ended;
using comm_test::expect_text;
using comm_test::Outcome;
using comm_test::run;

const LocalOptions kShort{.timeout_s = 30};

TEST(LocalFault, AThrowingRankEndsTheOthers) {
  const Outcome outcome = run(4, kShort, [](int rank, Communicator& comm) {
    std::vector<float> x(10);
    comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kGradients);
    if (rank == 1) throw std::runtime_error("out of memory in layer 3");
    try {
      while (true) comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kGradients);
    } catch (const Aborted& aborted) {
      EXPECT_STREQ(aborted.what(),
                   "aborted because rank 1 failed outside any call, after all_reduce #0 of world[0]: "
                   "out of memory in layer 3");
      throw;
    }
  });
  EXPECT_EQ(outcome.error->rank(), 1);
  EXPECT_STREQ(outcome.error->what(),
               "rank 1: out of memory in layer 3\nrank 1 was outside any call, after all_reduce #0 of world[0]");
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
                "rank 1 entered recv #0 of world[0] from rank 0 (20 bytes of fp32, activations), but rank 0 entered "
                "send #0 of world[0] to rank 1 (16 bytes of fp32, activations)");
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

}  // namespace
}  // namespace fivefold
