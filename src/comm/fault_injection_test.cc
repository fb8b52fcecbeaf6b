// Each kind of fault does what its plan says, to the call that its plan names, and to no other.
#include "comm/fault_injection.h"

#include <gtest/gtest.h>

#include "comm/comm_fault_support.h"
#include "comm/comm_test_support.h"

namespace fivefold {
namespace {

using comm_test::buffer_of;
using comm_test::Ended;
using comm_test::expect_text;
using comm_test::Outcome;
using comm_test::run;

const CallOptions kAsync{.mode = Mode::kAsync};

LocalOptions with(const FaultInjector& injector, double timeout_s = 30) {
  return {.timeout_s = timeout_s, .hook = injector.hook()};
}

TEST(FaultInjection, AFlippedReceivedBitIsWrongAtOneRankInOneCall) {
  // Third gather of parameters; the gathers of activations between them do not count. Bit 74 is bit 2 of byte 9: the
  // third int32 of the result, 4 x 256^1 apart from the right one.
  const FaultInjector injector(
      {{.kind = FaultKind::kFlipReceived,
        .rank = 2,
        .call = {.kind = CollectiveKind::kAllGather, .purpose = Purpose::kParameters, .nth = 2},
        .bit = 74}});
  for (const Mode mode : {Mode::kSync, Mode::kAsync}) {
    const bool first_world = mode == Mode::kSync;
    run_ranks(3, with(injector), [&](int rank, Communicator& comm) {
      for (int i = 0; i < 5; ++i) {
        std::vector<int32_t> x(1, 100 * i + rank), all(3), other(3);
        comm.all_gather(comm.world(), buffer_of(x), buffer_of(all), Purpose::kParameters, {.mode = mode}).wait_host();
        comm.all_gather(comm.world(), buffer_of(x), buffer_of(other), Purpose::kActivations);
        const std::vector<int32_t> right = {100 * i, 100 * i + 1, 100 * i + 2};
        std::vector<int32_t> expected = right;
        if (first_world && rank == 2 && i == 2) expected[2] ^= 1024;
        EXPECT_EQ(all, expected) << "rank " << rank << ", gather " << i;
        EXPECT_EQ(other, right);
        EXPECT_EQ(x[0], 100 * i + rank);
      }
    });
    EXPECT_EQ(injector.num_happened(), 1);  // once, also in a second world
  }
}

TEST(FaultInjection, AFlippedSentBitIsWrongAtTheReceivers) {
  // Bit 0 of rank 1's second all_reduce, and of its send to rank 0.
  const FaultInjector injector(
      {{.kind = FaultKind::kFlipSent, .rank = 1, .call = {.kind = CollectiveKind::kAllReduce, .sequence = 1}},
       {.kind = FaultKind::kFlipSent, .rank = 1, .call = {.kind = CollectiveKind::kSend}}});
  run_ranks(2, with(injector), [](int rank, Communicator& comm) {
    for (int i = 0; i < 3; ++i) {
      std::vector<int64_t> x(1, 10);
      comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kHash);
      EXPECT_EQ(x[0], i == 1 ? 21 : 20);  // 10 + (10 ^ 1)
    }
    std::vector<int64_t> x(1, 8);
    if (rank == 1) comm.send(comm.world(), buffer_of(x), 0, Purpose::kActivations);
    if (rank == 0) comm.recv(comm.world(), buffer_of(x), 1, Purpose::kActivations);
    EXPECT_EQ(x[0], 9);  // the sender's own memory is wrong as well
  });
  EXPECT_EQ(injector.num_happened(), 2);
}

TEST(FaultInjection, ADroppedCallIsAsIfItHadNotBeenMade) {
  // All ranks drop their second broadcast: nobody is missed, the data stays, and numbers go on without a gap.
  std::vector<Fault> plan;
  for (int rank = 0; rank < 3; ++rank)
    plan.push_back({.kind = FaultKind::kDrop, .rank = rank, .call = {.kind = CollectiveKind::kBroadcast, .nth = 1}});
  const FaultInjector injector(plan);
  run_ranks(3, with(injector), [](int rank, Communicator& comm) {
    for (int i = 0; i < 3; ++i) {
      std::vector<float> x(2, static_cast<float>(rank));
      const Work work = comm.broadcast(comm.world(), buffer_of(x), 2, Purpose::kParameters, kAsync);
      work.wait_host();
      EXPECT_EQ(x[1], static_cast<float>(i == 1 ? rank : 2)) << i;
    }
    const std::vector<CallRecord> records = comm.flight_recorder().records();
    ASSERT_EQ(records.size(), 2);
    EXPECT_EQ(records[1].name(), "broadcast #1 of world[0]");
    EXPECT_EQ(comm.counters().count(CollectiveKind::kBroadcast).calls, 2);
  });
}

TEST(FaultInjection, ADroppedBatchLeavesTheNumbersOfAllItsTransfers) {
  std::vector<Fault> plan;
  for (int rank = 0; rank < 2; ++rank)
    plan.push_back({.kind = FaultKind::kDrop, .rank = rank, .call = {.kind = CollectiveKind::kRecv}});
  run_ranks(2, with(FaultInjector(plan)), [](int rank, Communicator& comm) {
    for (int i = 0; i < 2; ++i) {
      std::vector<float> out(1, static_cast<float>(10 * i + rank)), in(1, -1.0f);
      comm.batch_send_recv(
          comm.world(),
          {{CollectiveKind::kSend, buffer_of(out), 1 - rank}, {CollectiveKind::kRecv, buffer_of(in), 1 - rank}},
          Purpose::kActivations);
      EXPECT_EQ(in[0], i == 0 ? -1.0f : static_cast<float>(11 - rank));
    }
    for (const CallRecord& record : comm.flight_recorder().records()) EXPECT_EQ(record.sequence, 0);
  });
}

TEST(FaultInjection, AKillEndsItsRankAtItsPoint) {
  for (const HookPoint at : {HookPoint::kBeforeEntry, HookPoint::kBeforeData, HookPoint::kAfterData}) {
    const FaultInjector injector({{.kind = FaultKind::kKill,
                                   .rank = 1,
                                   .call = {.group = GroupKind::kTp, .group_index = 3, .nth = 1},
                                   .at = at}});
    const Outcome outcome = run(3, with(injector), [](int, Communicator& comm) {
      const Group tp = comm.create_group(GroupKind::kTp, 3, {2, 1, 0});
      for (int i = 0; i < 4; ++i) {
        std::vector<float> x(5, 1.0f);
        comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kGradients);
        comm.all_reduce(tp, buffer_of(x), Reduction::kSum, Purpose::kGradients);
      }
    });
    expect_text(outcome, "rank 1: killed in all_reduce #1 of tp[3]\nrank 1 was in all_reduce #1 of tp[3]");
    EXPECT_EQ(outcome.error->rank(), 1);
    EXPECT_THROW(std::rethrow_exception(outcome.error->cause()), InjectedKill);
    EXPECT_EQ(outcome.num(Ended::kAborted), 2);
  }
}

TEST(FaultInjection, AFrozenRankIsWokenByTheAbortAndTouchesNoData) {
  for (const HookPoint at : {HookPoint::kBeforeEntry, HookPoint::kBeforeData}) {
    const FaultInjector injector({{.kind = FaultKind::kFreeze, .rank = 0, .call = {.nth = 1}, .at = at}});
    const Outcome outcome = run(2, with(injector, /*timeout_s=*/0.3), [](int rank, Communicator& comm) {
      std::vector<float> x(5, static_cast<float>(rank)), out(5, -1.0f);
      comm.all_to_all(comm.world(), buffer_of(x.data(), 4), buffer_of(out.data(), 4), Purpose::kActivations);
      out.assign(5, -1.0f);
      try {
        comm.all_to_all(comm.world(), buffer_of(x.data(), 4), buffer_of(out.data(), 4), Purpose::kActivations);
      } catch (const Aborted&) {
        EXPECT_EQ(out, std::vector<float>(5, -1.0f)) << "rank " << rank;
        throw;
      }
    });
    expect_text(outcome, std::string("rank 0 never ") + (at == HookPoint::kBeforeEntry ? "entered" : "finished") +
                             " all_to_all #1 of world[0]; it is in all_to_all #1 of world[0], waiting for no rank");
    EXPECT_EQ(outcome.ranks[0], Ended::kAborted);
  }
}

TEST(FaultInjection, ADelayedCallEndsWell) {
  const FaultInjector injector({{.kind = FaultKind::kDelay, .rank = 1, .delay_s = 1e-4},
                                {.kind = FaultKind::kDelay, .rank = 0, .at = HookPoint::kBeforeData, .delay_s = 1e-4},
                                {.kind = FaultKind::kDelay, .rank = 0, .at = HookPoint::kAfterData, .delay_s = 1e-4}});
  run_ranks(2, with(injector), [](int, Communicator& comm) {
    std::vector<int32_t> x(3, 1);
    comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kTokenCount);
    EXPECT_EQ(x, std::vector<int32_t>(3, 2));
  });
  EXPECT_EQ(injector.num_happened(), 3);
}

TEST(FaultInjectionDeathTest, AFlipBeyondTheDataIsABugOfThePlan) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto beyond = [] {
    const FaultInjector injector({{.kind = FaultKind::kFlipReceived, .bit = 32}});
    run_ranks(1, {.hook = injector.hook()}, [](int, Communicator& comm) {
      std::vector<float> x(1);
      comm.all_reduce(comm.world(), buffer_of(x), Reduction::kSum, Purpose::kLoss);
    });
  };
  EXPECT_DEATH(beyond(), "no bit 32 in the data of all_reduce #0 of world");
}

}  // namespace
}  // namespace fivefold
