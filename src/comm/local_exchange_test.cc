// Sends and receives, one by one and in batches, buffered and rendezvous.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

using comm_test::Bf16;
using comm_test::buffer_of;
using comm_test::random_delays;

const CallOptions kAsync{.mode = Mode::kAsync};

class LocalExchange : public testing::TestWithParam<SendMode> {
 protected:
  LocalOptions options(unsigned seed = 0) const {
    return {.timeout_s = 30, .send_mode = GetParam(), .hook = random_delays(seed)};
  }
};

TEST_P(LocalExchange, MessagesArriveInOrder) {
  run_ranks(2, options(), [](int rank, Communicator& comm) {
    for (int i = 0; i < 200; ++i) {
      std::vector<int64_t> x(static_cast<size_t>(i % 7), rank == 0 ? i : -1);
      if (rank == 0) {
        comm.send(comm.world(), buffer_of(x), 1, Purpose::kActivations);
        x.assign(x.size(), -2);  // the buffer is the caller's again
      } else {
        comm.recv(comm.world(), buffer_of(x), 0, Purpose::kActivations);
        ASSERT_EQ(x, std::vector<int64_t>(static_cast<size_t>(i % 7), i));
      }
    }
  });
}

TEST_P(LocalExchange, RingOfAsyncSendsThroughAGroup) {
  // In a group whose order is not the world's, everybody's value travels once around.
  for (const int n : {2, 3, 4, 8}) {
    run_ranks(n, options(static_cast<unsigned>(n)), [n](int rank, Communicator& comm) {
      std::vector<int> members(static_cast<size_t>(n));
      std::iota(members.rbegin(), members.rend(), 0);
      const Group ring = comm.create_group(GroupKind::kCp, 0, members);
      const int next = (ring.rank() + 1) % n, previous = (ring.rank() + n - 1) % n;
      std::vector<int32_t> mine(5, rank), theirs(5);
      for (int step = 0; step < n; ++step) {
        comm.batch_send_recv(
                ring,
                {{CollectiveKind::kSend, buffer_of(mine), next}, {CollectiveKind::kRecv, buffer_of(theirs), previous}},
                Purpose::kActivations, kAsync)
            .wait_host();
        std::swap(mine, theirs);
      }
      EXPECT_EQ(mine, std::vector<int32_t>(5, rank));
    });
  }
}

TEST_P(LocalExchange, BatchesMatchWhateverTheirOrder) {
  // All pairs at once: each rank sends two messages to every other rank; receives are listed before and after the
  // sends, and against rank order. Message k from a to b is 100 a + 10 b + k.
  constexpr int n = 4;
  run_ranks(n, options(7), [](int rank, Communicator& comm) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::vector<int32_t>> out, in;
      std::vector<PeerTransfer> transfers;
      for (int k = 0; k < 2; ++k) {
        for (int peer = 0; peer < n; ++peer) {
          out.push_back({100 * rank + 10 * peer + k});
          in.push_back({-1});
        }
      }
      const auto add = [&](CollectiveKind kind, auto& buffers, int peer, int k) {
        if (peer != rank) transfers.push_back({kind, buffer_of(buffers[static_cast<size_t>(k * n + peer)]), peer});
      };
      for (int k = 0; k < 2; ++k) {
        for (int i = 0; i < n; ++i) {
          const int peer = (rank + round) % 2 == 0 ? i : n - 1 - i;
          if (rank % 2 == 0) add(CollectiveKind::kRecv, in, peer, k);
          add(CollectiveKind::kSend, out, peer, k);
          if (rank % 2 == 1) add(CollectiveKind::kRecv, in, peer, k);
        }
      }
      comm.batch_send_recv(comm.world(), transfers, Purpose::kActivations);
      for (int k = 0; k < 2; ++k)
        for (int peer = 0; peer < n; ++peer)
          if (peer != rank) {
            ASSERT_EQ(in[static_cast<size_t>(k * n + peer)][0], 100 * peer + 10 * rank + k);
          }
    }
  });
}

TEST_P(LocalExchange, BatchTakesWhicheverComesFirst) {
  // Rank 1 enters its batch only after rank 2, whose plain send has to be taken by rank 0's batch before that, although
  // it is listed second. Receiving in list order would deadlock under rendezvous.
  run_ranks(3, options(3), [](int rank, Communicator& comm) {
    std::vector<float> a(1), b(1), token(1);
    if (rank == 0) {
      comm.batch_send_recv(comm.world(),
                           {{CollectiveKind::kRecv, buffer_of(a), 1}, {CollectiveKind::kRecv, buffer_of(b), 2}},
                           Purpose::kActivations);
      EXPECT_EQ(a[0], 1.0f);
      EXPECT_EQ(b[0], 2.0f);
    } else if (rank == 1) {
      a[0] = 1.0f;
      comm.recv(comm.world(), buffer_of(token), 2, Purpose::kControl);
      comm.send(comm.world(), buffer_of(a), 0, Purpose::kActivations);
    } else {
      b[0] = 2.0f;
      comm.send(comm.world(), buffer_of(b), 0, Purpose::kActivations);
      comm.send(comm.world(), buffer_of(token), 1, Purpose::kControl);
    }
  });
}

TEST_P(LocalExchange, AnyDtypeTravels) {
  run_ranks(2, options(), [](int rank, Communicator& comm) {
    std::vector<Bf16> x(3, static_cast<Bf16>(rank == 0 ? 0x3f80 : 0));
    std::vector<uint8_t> y(5, rank == 0 ? uint8_t{200} : uint8_t{0});
    if (rank == 0) {
      comm.send(comm.world(), buffer_of(x), 1, Purpose::kActivations);
      comm.send(comm.world(), buffer_of(y), 1, Purpose::kActivations);
    } else {
      comm.recv(comm.world(), buffer_of(x), 0, Purpose::kActivations);
      comm.recv(comm.world(), buffer_of(y), 0, Purpose::kActivations);
      EXPECT_EQ(x, std::vector<Bf16>(3, static_cast<Bf16>(0x3f80)));
      EXPECT_EQ(y, std::vector<uint8_t>(5, 200));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, LocalExchange, testing::Values(SendMode::kBuffered, SendMode::kRendezvous),
                         [](const auto& info) {
                           return info.param == SendMode::kBuffered ? std::string("Buffered") : "Rendezvous";
                         });

void both_send_first(int rank, Communicator& comm) {
  std::vector<float> out(4, static_cast<float>(rank)), in(4);
  comm.send(comm.world(), buffer_of(out), 1 - rank, Purpose::kActivations);
  comm.recv(comm.world(), buffer_of(in), 1 - rank, Purpose::kActivations);
  EXPECT_EQ(in[0], static_cast<float>(1 - rank));
}

TEST(LocalExchangeModes, BufferedSendsDoNotWait) { run_ranks(2, {.timeout_s = 30}, both_send_first); }

TEST(LocalExchangeModes, RendezvousFindsTheDeadlock) {
  try {
    run_ranks(2, {.timeout_s = 0.2, .send_mode = SendMode::kRendezvous}, both_send_first);
    FAIL() << "no deadlock";
  } catch (const RankError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("deadlock: "), std::string::npos) << text;
    EXPECT_NE(text.find("rank 0 is in send #0 of world[0] to rank 1, waiting for rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 is in send #0 of world[0] to rank 0, waiting for rank 0"), std::string::npos) << text;
  }
}

TEST(LocalExchangeModes, StagingIsAccounted) {
  std::atomic<bool> sent{false};
  run_ranks(2, {.timeout_s = 30}, [&](int rank, Communicator& comm) {
    std::vector<float> x(100);
    if (rank == 0) {
      for (int i = 0; i < 3; ++i) comm.send(comm.world(), buffer_of(x), 1, Purpose::kActivations);
      EXPECT_EQ(comm.counters().staging_bytes(), 3 * 400);
      sent = true;
      comm.barrier(comm.world(), Purpose::kControl);
      EXPECT_EQ(comm.counters().staging_bytes(), 0);
      EXPECT_EQ(comm.counters().peak_staging_bytes(), 3 * 400);
    } else {
      while (!sent) std::this_thread::yield();
      for (int i = 0; i < 3; ++i) comm.recv(comm.world(), buffer_of(x), 0, Purpose::kActivations);
      comm.barrier(comm.world(), Purpose::kControl);
      EXPECT_EQ(comm.counters().peak_staging_bytes(), 0);
    }
  });
}

}  // namespace
}  // namespace fivefold
