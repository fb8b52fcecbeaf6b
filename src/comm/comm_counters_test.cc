#include "comm/comm_counters.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

using comm_test::Bf16;
using comm_test::buffer_of;

TEST(CommCounters, BytesFollowTheFormulas) {
  // Bytes worked out by hand.
  run_ranks(4, {.timeout_s = 30}, [](int rank, Communicator& comm) {
    const Group dp = comm.create_group(GroupKind::kDp, 0, {0, 1, 2, 3});
    std::vector<float> ten(10), twelve(12), twelve_more(12), three(3);
    std::vector<Bf16> bf16(12);
    std::vector<int64_t> send_counts = {0, 1, 2, 3}, recv_counts(4, rank);  // everybody sends j elements to j
    std::vector<double> six(6), received(static_cast<size_t>(4 * rank));

    comm.all_reduce(dp, buffer_of(ten), Reduction::kSum, Purpose::kGradients);
    comm.all_reduce(dp, buffer_of(ten), Reduction::kSum, Purpose::kGradients);
    comm.all_reduce(comm.world(), buffer_of(three), Reduction::kMax, Purpose::kLoss);
    comm.reduce_scatter(dp, buffer_of(twelve), buffer_of(three), Reduction::kSum, Purpose::kGradients);
    comm.reduce_scatter(dp, buffer_of(bf16), buffer_of(three), Reduction::kSum, Purpose::kGradNorm);
    comm.all_gather(dp, buffer_of(three), buffer_of(twelve), Purpose::kParameters);
    comm.all_to_all(dp, buffer_of(twelve), buffer_of(twelve_more), Purpose::kActivations);
    comm.all_to_all(dp, buffer_of(six), send_counts, buffer_of(received), recv_counts, Purpose::kActivationGradients);
    comm.broadcast(dp, buffer_of(ten), 2, Purpose::kControl);
    if (rank == 0) comm.send(dp, buffer_of(ten), 1, Purpose::kActivations);
    if (rank == 1) comm.recv(dp, buffer_of(ten), 0, Purpose::kActivations);
    comm.barrier(dp, Purpose::kControl);

    CommCounters& counters = comm.counters();
    using enum CollectiveKind;
    const auto count = [&](CollectiveKind kind, Purpose purpose) {
      return counters.count(kind, GroupKind::kDp, purpose);
    };
    // Chunks of ceil(10 / 4) = 3 floats: 2 * 3 * 12 bytes, twice.
    EXPECT_EQ(count(kAllReduce, Purpose::kGradients), (CommCount{2, 144}));
    // Three floats are chunks of one: 2 * 3 * 4 bytes.
    EXPECT_EQ(counters.count(kAllReduce, GroupKind::kWorld, Purpose::kLoss), (CommCount{1, 24}));
    EXPECT_EQ(counters.count(kAllReduce), (CommCount{3, 168}));
    // 3 chunks of 12 bytes; 3 chunks of three bf16 though the output is fp32.
    EXPECT_EQ(count(kReduceScatter, Purpose::kGradients), (CommCount{1, 36}));
    EXPECT_EQ(count(kReduceScatter, Purpose::kGradNorm), (CommCount{1, 18}));
    EXPECT_EQ(count(kAllGather, Purpose::kParameters), (CommCount{1, 36}));
    EXPECT_EQ(count(kAllToAll, Purpose::kActivations), (CommCount{1, 36}));
    // 6 doubles less those for itself.
    EXPECT_EQ(count(kAllToAll, Purpose::kActivationGradients), (CommCount{1, (6 - rank) * 8}));
    EXPECT_EQ(count(kBroadcast, Purpose::kControl), (CommCount{1, rank == 2 ? 40 : 0}));
    EXPECT_EQ(count(kSend, Purpose::kActivations), (rank == 0 ? CommCount{1, 40} : CommCount{}));
    EXPECT_EQ(count(kRecv, Purpose::kActivations), (rank == 1 ? CommCount{1, 0} : CommCount{}));
    EXPECT_EQ(count(kBarrier, Purpose::kControl), (CommCount{1, 0}));
    EXPECT_GT(counters.seconds(kAllReduce), 0);
    counters.reset();
    EXPECT_EQ(counters.count(kAllReduce), CommCount{});
    EXPECT_EQ(counters.seconds(kAllReduce), 0);
  });
}

// The gather cannot be over before the rank that checks has counted it.
TEST(CommCounters, AnAsynchronousCallCountsWhenItIsMade) {
  std::atomic<bool> counted{false};
  LocalOptions options{.timeout_s = 60, .hook = [&](HookedCall& call) {
                         if (call.point != HookPoint::kBeforeEntry || call.rank != 1) return;
                         while (!counted) std::this_thread::yield();
                       }};
  run_ranks(2, options, [&](int rank, Communicator& comm) {
    std::vector<float> part(4), all(8);
    const Work gather = comm.all_gather(comm.world(), buffer_of(part), buffer_of(all), Purpose::kParameters,
                                        {.mode = Mode::kAsync, .stream = {}, .keep_alive = {}});
    const CommCount made = comm.counters().count(CollectiveKind::kAllGather);
    if (rank == 0) EXPECT_FALSE(gather.done());
    EXPECT_EQ(made, (CommCount{1, 16}));
    if (rank == 0) counted = true;
    gather.wait_host();
    EXPECT_EQ(comm.counters().count(CollectiveKind::kAllGather), made);
  });
}

TEST(CommCounters, OneRankCountsCallsButNoBytes) {
  run_ranks(1, {.timeout_s = 30}, [](int, Communicator& comm) {
    std::vector<float> x(5), y(5);
    comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kGradients);
    comm.reduce_scatter(comm.world(), buffer_of(x), buffer_of(y), Reduction::kSum, Purpose::kGradients);
    comm.all_gather(comm.world(), buffer_of(x), buffer_of(y), Purpose::kGradients);
    comm.all_to_all(comm.world(), buffer_of(x), buffer_of(y), Purpose::kGradients);
    comm.all_to_all(comm.world(), buffer_of(x), {5}, buffer_of(y), {5}, Purpose::kGradients);
    comm.broadcast(comm.world(), buffer_of(x), 0, Purpose::kGradients);
    for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
                            CollectiveKind::kBroadcast})
      EXPECT_EQ(comm.counters().count(kind), (CommCount{1, 0}));
    EXPECT_EQ(comm.counters().count(CollectiveKind::kAllToAll), (CommCount{2, 0}));
  });
}

}  // namespace
}  // namespace fivefold
