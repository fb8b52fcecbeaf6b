// Order, overlap and reproducibility of calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

using comm_test::buffer_of;
using comm_test::random_delays;

const LocalOptions kShort{.timeout_s = 30};
const CallOptions kAsync{.mode = Mode::kAsync};

TEST(LocalAsync, ReturnsBeforePeersCome) {
  std::atomic<bool> released{false};
  run_ranks(2, kShort, [&](int rank, Communicator& comm) {
    std::vector<float> x(1, 1.0f);
    if (rank == 1) {
      while (!released) std::this_thread::yield();
    }
    const Work work = comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kLoss, kAsync);
    if (rank == 0) {
      EXPECT_FALSE(work.done());
      EXPECT_FALSE(work.wait_host(0.0));
      released = true;
    }
    EXPECT_TRUE(work.wait_host());
    EXPECT_TRUE(work.done());
    EXPECT_EQ(x[0], 2.0f);
  });
}

TEST(LocalAsync, SyncAndAsyncCallsKeepProgramOrder) {
  // Each all_reduce over the two ranks doubles x; a gather between them sees it four times as large each round.
  run_ranks(2, kShort, [&](int, Communicator& comm) {
    const Group other = comm.create_group(GroupKind::kDp, 0, {0, 1});
    std::vector<int64_t> x(1, 1), history(20);
    for (int64_t& seen : history) {
      comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kLoss, kAsync);
      comm.all_reduce(other, buffer_of(x), Reduction::kSum, Purpose::kLoss, kAsync);
      std::vector<int64_t> copy(2);
      comm.all_gather(comm.world(), buffer_of(x), buffer_of(copy), Purpose::kLoss);  // sync: after both
      seen = copy[0];
    }
    for (size_t i = 0; i < history.size(); ++i) EXPECT_EQ(history[i], int64_t{1} << (2 * (i + 1)));
  });
}

TEST(LocalAsync, ManyInFlightOverSeveralGroups) {
  constexpr int n = 4, kRounds = 50;
  run_ranks(n, {.timeout_s = 30, .hook = random_delays(1)}, [&](int rank, Communicator& comm) {
    const Group pair = comm.create_group(GroupKind::kTp, rank / 2, {rank / 2 * 2, rank / 2 * 2 + 1});
    std::vector<std::vector<float>> big(kRounds), small(kRounds);
    std::vector<Work> works;
    for (int i = 0; i < kRounds; ++i) {
      big[i].assign(100, static_cast<float>(rank + i));
      small[i].assign(3, static_cast<float>(rank * i));
      works.push_back(comm.all_reduce(comm.world(), buffer_of(big[i]), Reduction::kSum, Purpose::kGradients, kAsync));
      works.push_back(comm.all_reduce(pair, buffer_of(small[i]), Reduction::kSum, Purpose::kActivations, kAsync));
    }
    for (const Work& work : works) work.wait_on({});
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_EQ(big[i][99], static_cast<float>(6 + 4 * i));                    // 0 + 1 + 2 + 3 + 4 i
      EXPECT_EQ(small[i][2], static_cast<float>((rank / 2 * 2 * 2 + 1) * i));  // (2p + 2p + 1) i
    }
  });
}

TEST(LocalAsync, KeepsOwnersAliveUntilComplete) {
  std::atomic<bool> released{false};
  run_ranks(2, kShort, [&](int rank, Communicator& comm) {
    auto x = std::make_shared<std::vector<float>>(1000, 1.0f);
    std::weak_ptr<std::vector<float>> watch = x;
    if (rank == 1) {
      while (!released) std::this_thread::yield();
    }
    const Work work = comm.all_reduce(comm.world(), buffer_of(*x), Reduction::kSum, Purpose::kGradients,
                                      {.mode = Mode::kAsync, .keep_alive = x});
    x.reset();
    if (rank == 0) {
      EXPECT_FALSE(watch.expired());
      released = true;
    }
    work.wait_host();
    EXPECT_TRUE(watch.expired());
  });
}

TEST(LocalAsync, DestructorFinishesWhatWasAskedFor) {
  std::vector<std::vector<float>> x(3, std::vector<float>(10, 1.0f));
  run_ranks(3, kShort, [&](int rank, Communicator& comm) {
    comm.all_reduce(comm.world(), buffer_of(x[rank]), Reduction::kSum, Purpose::kGradients, kAsync);
  });
  for (const auto& values : x) EXPECT_EQ(values[9], 3.0f);
}

// Values whose sum depends on the order of summation.
std::vector<float> rough_values(int rank, int64_t count) {
  std::minstd_rand random(static_cast<unsigned>(rank) + 1);
  std::vector<float> x;
  for (int64_t i = 0; i < count; ++i)
    x.push_back(std::ldexp(static_cast<float>(random() % 10007) - 5000.0f, static_cast<int>(random() % 24) - 12));
  return x;
}

TEST(LocalAsync, SameBitsWhateverTheTiming) {
  // The overlap of sync and async, several buckets in flight, delays before entry and before data (the case of
  // reductions that read a buffer that is not yet written). Expected: the sum in rank order.
  constexpr int n = 4;
  constexpr int64_t kCount = 1003, kBuckets = 8;
  std::vector<float> expected = rough_values(0, kCount * kBuckets);
  for (int r = 1; r < n; ++r) {
    const auto x = rough_values(r, kCount * kBuckets);
    for (size_t i = 0; i < x.size(); ++i) expected[i] += x[i];
  }
  for (unsigned run = 0; run < 20; ++run) {
    const LocalOptions options{.timeout_s = 30, .hook = random_delays(run)};
    run_ranks(n, options, [&](int rank, Communicator& comm) {
      const auto mine = rough_values(rank, kCount * kBuckets);
      std::vector<float> x(mine.size(), std::numeric_limits<float>::quiet_NaN());
      std::vector<Work> works;
      for (int64_t b = 0; b < kBuckets; ++b) {
        std::copy_n(mine.begin() + b * kCount, kCount, x.begin() + b * kCount);
        const CallOptions mode{.mode = b % 3 == 2 ? Mode::kSync : Mode::kAsync};
        works.push_back(comm.all_reduce(comm.world(), buffer_of(x.data() + b * kCount, kCount), Reduction::kSum,
                                        Purpose::kGradients, mode));
      }
      for (const Work& work : works) work.wait_host();
      ASSERT_EQ(x, expected) << "run " << run;
    });
  }
}

TEST(LocalAsync, BuffersMayBeReusedAsSoonAsTheCallReturns) {
  // A peer that is delayed before it reads must still see the old contents.
  for (unsigned run = 0; run < 10; ++run) {
    run_ranks(3, {.timeout_s = 30, .hook = random_delays(100 + run)}, [](int rank, Communicator& comm) {
      std::vector<float> x(3), out(1), all(3);
      for (int i = 0; i < 50; ++i) {
        x.assign(3, static_cast<float>(rank + i));
        comm.reduce_scatter(comm.world(), buffer_of(x), buffer_of(out), Reduction::kSum, Purpose::kGradients);
        x.assign(3, std::numeric_limits<float>::quiet_NaN());
        ASSERT_EQ(out[0], static_cast<float>(3 + 3 * i));
        out[0] = static_cast<float>(rank * i);
        comm.all_gather(comm.world(), buffer_of(out), buffer_of(all), Purpose::kParameters);
        out[0] = std::numeric_limits<float>::quiet_NaN();
        ASSERT_EQ(all, (std::vector<float>{0, static_cast<float>(i), static_cast<float>(2 * i)}));
      }
    });
  }
}

TEST(LocalAsync, SeveralThreadsOfOneRankMayCall) {
  // Barriers of two threads on two groups of one member: no order between ranks is needed, only exclusion.
  run_ranks(1, kShort, [](int, Communicator& comm) {
    std::thread other([&] {
      for (int i = 0; i < 500; ++i) comm.barrier(comm.world(), Purpose::kControl);
    });
    for (int i = 0; i < 500; ++i) comm.barrier(comm.world(), Purpose::kControl, kAsync);
    other.join();
    comm.barrier(comm.world(), Purpose::kControl);
    EXPECT_EQ(comm.counters().count(CollectiveKind::kBarrier).calls, 1001);
  });
}

}  // namespace
}  // namespace fivefold
