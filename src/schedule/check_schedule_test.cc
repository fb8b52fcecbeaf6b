#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "schedule/generate.h"
#include "schedule/schedule_file.h"

namespace fivefold {
namespace {

using Op = ScheduleOp;
using Actions = std::vector<ScheduleAction>;

// 1F1B on 2 ranks, 3 microbatches, in unit times. Rank 0: F 0-1, 1-2, BW0 4-6, F2 6-7, BW1 7-9, BW2 10-12. Rank 1: F0
// 1-2, BW0 2-4, F1 4-5, BW1 5-7, F2 7-8, BW2 8-10. Transfers happen at 1, 2, 4, 7 (both directions), 10.
constexpr const char* kOneFOneB =
    "pipeline ranks=2 chunks=1 microbatches=3 placement=loop\n"
    "rank 0: F0 SendF0>1 F1 SendF1>1 RecvB0<1 BW0 F2 SendF2>1 +RecvB1<1 BW1 RecvB2<1 BW2\n"
    "rank 1: RecvF0<0 F0 RecvF1<0 BW0 SendB0>0 F1 BW1 RecvF2<0 +SendB1>0 F2 BW2 SendB2>0\n";

TEST(CheckSchedule, TransfersStandWhereTheirDataArrives) {
  EXPECT_EQ(write_schedule_text(*generate(ScheduleKind::k1F1B, 2, 1, 3)), kOneFOneB);
}

// ZBV on 2 ranks, 1 microbatch: virtual stages 0 and 3 on rank 0, 1 and 2 on rank 1, where nothing is sent at the turn.
constexpr const char* kV =
    "pipeline ranks=2 chunks=2 microbatches=1 placement=v\n"
    "rank 0: F0.0 SendF0.0>1 RecvF1.0<1 F1.0 B1.0 SendB1.0>1 W1.0 RecvB0.0<1 B0.0 W0.0\n"
    "rank 1: RecvF0.0<0 F0.0 F1.0 SendF1.0>0 RecvB1.0<0 B1.0 B0.0 SendB0.0>0 W1.0 W0.0\n";

// Refusals of a schedule after `change`.
std::string refusal(Schedule schedule, const std::function<void(Schedule&)>& change) {
  change(schedule);
  const auto checked = check_schedule(schedule);
  return checked.ok() ? "accepted" : checked.error().message();
}

struct Fault {
  const char* what;
  std::function<void(std::vector<Actions>&)> change;
  const char* message;
};

void expect_faults(const char* text, const std::vector<Fault>& faults) {
  const Result<Schedule> schedule = read_schedule_text(text, "test");
  ASSERT_TRUE(schedule.ok()) << schedule.error().message();
  for (const Fault& fault : faults)
    EXPECT_EQ(refusal(*schedule, [&](Schedule& s) { fault.change(s.ranks); }), fault.message) << fault.what;
}

void drop(Actions& actions, int position) { actions.erase(actions.begin() + position); }
void insert(Actions& actions, int position, const ScheduleAction& action) {
  actions.insert(actions.begin() + position, action);
}

TEST(CheckSchedule, FaultsOfOneRank) {
  const std::string rank0 = "schedule rank 0 position ", rank1 = "schedule rank 1 position ";
  expect_faults(
      kOneFOneB,
      {
          {"F dropped", [](auto& r) { drop(r[0], 0); },
           "schedule rank 0 position 0: SendF(chunk 0, microbatch 0, to rank 1) comes before its forward"},
          {"last F dropped", [](auto& r) { drop(r[1], 9); },
           "schedule rank 1 position 9: BW(chunk 0, microbatch 2) comes before its forward"},
          {"BW dropped", [](auto& r) { drop(r[0], 11); },
           "schedule rank 0 position 11: BW(chunk 0, microbatch 2) is missing"},
          {"BW of a middle microbatch dropped", [](auto& r) { drop(r[1], 6); },
           "schedule rank 1 position 7: SendB(chunk 0, microbatch 1, to rank 0) comes before its backward"},
          {"send dropped", [](auto& r) { drop(r[0], 1); },
           "schedule rank 0 position 11: SendF(chunk 0, microbatch 0, to rank 1) is missing"},
          {"send of a gradient dropped", [](auto& r) { drop(r[1], 11); },
           "schedule rank 1 position 11: SendB(chunk 0, microbatch 2, to rank 0) is missing"},
          {"receive dropped", [](auto& r) { drop(r[1], 0); },
           "schedule rank 1 position 0: F(chunk 0, microbatch 0) comes before its input is received"},
          {"receive of a gradient dropped", [](auto& r) { drop(r[0], 10); },
           "schedule rank 0 position 10: BW(chunk 0, microbatch 2) comes before the gradient of its output is "
           "received"},
          {"F twice", [](auto& r) { insert(r[0], 2, r[0][0]); },
           "schedule rank 0 position 2: F(chunk 0, microbatch 0) is there twice"},
          {"BW twice", [](auto& r) { r[0].push_back(r[0].back()); },
           "schedule rank 0 position 12: BW(chunk 0, microbatch 2) is there twice"},
          {"send twice", [](auto& r) { insert(r[0], 2, r[0][1]); },
           "schedule rank 0 position 2: SendF(chunk 0, microbatch 0, to rank 1) is there twice"},
          {"receive twice", [](auto& r) { insert(r[1], 1, r[1][0]); },
           "schedule rank 1 position 1: RecvF(chunk 0, microbatch 0, from rank 0) is there twice"},
          {"F and its send swapped", [](auto& r) { std::swap(r[0][0], r[0][1]); },
           "schedule rank 0 position 0: SendF(chunk 0, microbatch 0, to rank 1) comes before its forward"},
          {"receive and F swapped", [](auto& r) { std::swap(r[1][0], r[1][1]); },
           "schedule rank 1 position 0: F(chunk 0, microbatch 0) comes before its input is received"},
          {"F and BW swapped", [](auto& r) { std::swap(r[1][5], r[1][6]); },
           "schedule rank 1 position 5: BW(chunk 0, microbatch 1) comes before its forward"},
          {"receive of a gradient and BW swapped", [](auto& r) { std::swap(r[0][4], r[0][5]); },
           "schedule rank 0 position 4: BW(chunk 0, microbatch 0) comes before the gradient of its output is received"},
          {"BW and its send swapped", [](auto& r) { std::swap(r[1][3], r[1][4]); },
           "schedule rank 1 position 3: SendB(chunk 0, microbatch 0, to rank 0) comes before its backward"},
          {"wrong peer", [](auto& r) { r[0][1].peer = 0; },
           "schedule rank 0 position 1: SendF(chunk 0, microbatch 0, to rank 0) has the wrong peer (use rank 1)"},
          {"peer that is not there", [](auto& r) { r[0][4].peer = 2; },
           "schedule rank 0 position 4: RecvB(chunk 0, microbatch 0, from rank 2) has the wrong peer (use rank 1)"},
          {"send behind the last stage", [](auto& r) { insert(r[1], 2, {Op::kSendForward, 0, 0, -1, -1, 0}); },
           "schedule rank 1 position 2: SendF(chunk 0, microbatch 0, to rank 0) has no other end: the model ends "
           "there, "
           "or goes on on the same rank"},
          {"receive before the first stage", [](auto& r) { insert(r[0], 0, {Op::kRecvForward, 0, 0, -1, -1, 1}); },
           "schedule rank 0 position 0: RecvF(chunk 0, microbatch 0, from rank 1) has no other end: the model ends "
           "there, or goes on on the same rank"},
          {"a microbatch too many", [](auto& r) { r[0].push_back({Op::kForward, 0, 3}); },
           "schedule rank 0 position 12: F(chunk 0, microbatch 3) does not exist"},
          {"a microbatch below zero", [](auto& r) { r[0][0].microbatch = -1; },
           "schedule rank 0 position 0: F(chunk 0, microbatch -1) does not exist"},
          {"a chunk too many", [](auto& r) { r[1][1].chunk = 1; },
           "schedule rank 1 position 1: F(chunk 1, microbatch 0) does not exist"},
          {"another microbatch", [](auto& r) { r[0][2].microbatch = 2; },
           "schedule rank 0 position 3: SendF(chunk 0, microbatch 1, to rank 1) comes before its forward"},
          {"W after BW", [](auto& r) { insert(r[0], 6, {Op::kBackwardWeight, 0, 0}); },
           "schedule rank 0 position 6: W(chunk 0, microbatch 0) follows a BW, which has the weight gradient in it"},
          {"B for BW", [](auto& r) { r[0][11].op = Op::kBackwardInput; },
           "schedule rank 0 position 12: W(chunk 0, microbatch 2) is missing"},
          {"joined to a computation", [](auto& r) { r[0][1].joined = true; },
           "schedule rank 0 position 1: SendF(chunk 0, microbatch 0, to rank 1) is joined to no transfer before it"},
          {"computation joined", [](auto& r) { r[0][2].joined = true; },
           "schedule rank 0 position 2: F(chunk 0, microbatch 1) is joined to no transfer before it"},
          {"lists of two ranks swapped", [](auto& r) { std::swap(r[0], r[1]); },
           "schedule rank 0 position 0: RecvF(chunk 0, microbatch 0, from rank 0) has no other end: the model ends "
           "there, or goes on on the same rank"},
          {"a rank without actions", [](auto& r) { r[1].clear(); },
           "schedule rank 1 position 0: F(chunk 0, microbatch 0) is missing"},
          {"a list dropped", [](auto& r) { r.pop_back(); }, "schedule: 2 ranks have 1 lists of actions"},
      });
}

TEST(CheckSchedule, FaultsOfChunksAndSplitBackward) {
  expect_faults(
      kV,
      {
          {"W before B", [](auto& r) { std::swap(r[0][4], r[0][6]); },
           "schedule rank 0 position 4: W(chunk 1, microbatch 0) comes before its input gradient"},
          {"W twice", [](auto& r) { r[0].push_back(r[0].back()); },
           "schedule rank 0 position 10: W(chunk 0, microbatch 0) is there twice"},
          {"W dropped", [](auto& r) { r[1].pop_back(); },
           "schedule rank 1 position 9: W(chunk 0, microbatch 0) is missing"},
          {"B twice", [](auto& r) { insert(r[0], 5, r[0][4]); },
           "schedule rank 0 position 5: B(chunk 1, microbatch 0) is there twice"},
          {"BW after B", [](auto& r) { r[0][6].op = Op::kBackward; },
           "schedule rank 0 position 6: BW(chunk 1, microbatch 0) is there twice"},
          {"chunks of one rank in the wrong order, forward", [](auto& r) { std::swap(r[1][1], r[1][2]); },
           "schedule rank 1 position 1: F(chunk 1, microbatch 0) comes before the forward of chunk 0"},
          {"chunks of one rank in the wrong order, backward", [](auto& r) { std::swap(r[1][5], r[1][6]); },
           "schedule rank 1 position 5: B(chunk 0, microbatch 0) comes before the backward of chunk 1"},
          {"transfer at the turn", [](auto& r) { insert(r[1], 2, {Op::kSendForward, 0, 0, -1, -1, 1}); },
           "schedule rank 1 position 2: SendF(chunk 0, microbatch 0, to rank 1) has no other end: the model ends "
           "there, "
           "or goes on on the same rank"},
          {"overlapped with nothing", [](auto& r) { r[0][3].op = Op::kOverlapped; },
           "schedule rank 0 position 3: FB(chunk 1, microbatch 0 with chunk -1, microbatch -1) does not exist"},
          {"overlapped with its own backward",
           [](auto& r) {
             r[0][3] = {Op::kOverlapped, 1, 0, 1, 0};
             drop(r[0], 4);
           },
           "schedule rank 0 position 3: FB(chunk 1, microbatch 0 with chunk 1, microbatch 0) comes before its forward"},
      });
  EXPECT_EQ(refusal(*read_schedule_text(kV, "test"), [](Schedule& s) { s.placement = Placement::kLoop; }),
            "schedule rank 0 position 4: B(chunk 1, microbatch 0) comes before the gradient of its output is received");
}

// What only shows on two ranks together.
TEST(CheckSchedule, FaultsOfTransfers) {
  expect_faults(
      kOneFOneB,
      {
          {"receives in another order than the sends",
           [](auto& r) {
             r[1] = {r[1][2], r[1][0], r[1][1], r[1][3], r[1][4],  r[1][5],
                     r[1][6], r[1][7], r[1][8], r[1][9], r[1][10], r[1][11]};
           },
           "schedule rank 1 position 0: RecvF(chunk 0, microbatch 1, from rank 0) meets SendF(chunk 0, microbatch 0, "
           "to "
           "rank 1) of rank 0 position 1 (receive in the order of the sends)"},
          {"an exchange that is not joined and begins differently on the two ranks",
           [](auto& r) {
             std::swap(r[0][7], r[0][8]);
             r[0][7].joined = r[0][8].joined = r[1][8].joined = false;
           },
           "schedule rank 0 position 7: RecvB(chunk 0, microbatch 1, from rank 1) waits for ever: rank 1 waits at "
           "position 7 in RecvF(chunk 0, microbatch 2, from rank 0) (join transfers that have to pass each other)"},
          {"a gradient that is asked for before the forward behind it has left",
           [](auto& r) {
             const ScheduleAction send = r[0][3];
             drop(r[0], 3);
             insert(r[0], 5, send);
           },
           "schedule rank 0 position 3: RecvB(chunk 0, microbatch 0, from rank 1) waits for ever: rank 1 waits at "
           "position 2 in RecvF(chunk 0, microbatch 1, from rank 0) (join transfers that have to pass each other)"},
      });
}

// Both ranks begin an exchange by sending: each waits for the other to receive, unless the two transfers are joined.
TEST(CheckSchedule, JoinedTransfersPassEachOther) {
  Schedule schedule = *read_schedule_text(kOneFOneB, "test");
  Actions& second = schedule.ranks[1];
  std::swap(second[7], second[8]);
  second[7].joined = false;
  second[8].joined = true;
  EXPECT_TRUE(check_schedule(schedule).ok());
  second[8].joined = false;
  EXPECT_TRUE(check_schedule(schedule).ok());  // rank 0 has both open
  schedule.ranks[0][8].joined = false;
  EXPECT_EQ(check_schedule(schedule).error().message(),
            "schedule rank 0 position 7: SendF(chunk 0, microbatch 2, to rank 1) waits for ever: rank 1 waits at "
            "position 7 in SendB(chunk 0, microbatch 1, to rank 0) (join transfers that have to pass each other)");
}

// Each action of several schedules in turn is dropped, doubled, given to another rank, microbatch, chunk or peer.
TEST(CheckSchedule, EveryActionIsNeededOnceInItsPlace) {
  struct Case {
    ScheduleKind kind;
    int p, v, m;
  };
  int faults = 0;
  const auto expect_refused = [&](const Schedule& schedule, const std::string& what) {
    ++faults;
    const auto checked = check_schedule(schedule);
    ASSERT_FALSE(checked.ok()) << what;
    const std::string message = checked.error().message();
    EXPECT_NE(message.find("rank "), std::string::npos) << message;
    EXPECT_NE(message.find("position "), std::string::npos) << message;
    EXPECT_NE(message.find("(chunk "), std::string::npos) << message;
  };
  for (const Case& c : {Case{ScheduleKind::k1F1B, 3, 1, 4}, Case{ScheduleKind::kInterleaved, 2, 3, 4},
                        Case{ScheduleKind::kZb1p, 3, 1, 4}, Case{ScheduleKind::kZbv, 3, 2, 4},
                        Case{ScheduleKind::kDualPipeV, 2, 2, 5}}) {
    const Schedule schedule = *generate(c.kind, c.p, c.v, c.m);
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (size_t position = 0; position < schedule.ranks[rank].size(); ++position) {
        const ScheduleAction action = schedule.ranks[rank][position];
        const std::string what = std::string(to_string(c.kind)) + " rank " + std::to_string(rank) + " position " +
                                 std::to_string(position) + " " + to_string(action);
        const auto changed = [&](const std::function<void(Actions&)>& change, const char* how) {
          Schedule other = schedule;
          change(other.ranks[rank]);
          expect_refused(other, what + ": " + how);
        };
        changed([&](Actions& a) { drop(a, static_cast<int>(position)); }, "dropped");
        changed([&](Actions& a) { insert(a, static_cast<int>(position), action); }, "doubled");
        changed([&](Actions& a) { a.push_back(action); }, "done again at the end");
        changed([&](Actions& a) { a[position].microbatch = (action.microbatch + 1) % c.m; }, "another microbatch");
        if (c.v > 1) changed([&](Actions& a) { a[position].chunk = (action.chunk + 1) % c.v; }, "another chunk");
        if (is_transfer(action.op)) {
          changed([&](Actions& a) { a[position].peer = (action.peer + 1) % c.p; }, "another peer");
          changed([&](Actions& a) { a[position].peer = -1; }, "no peer");
        } else {
          changed([&](Actions& a) { a[position].joined = true; }, "joined");
        }
        Schedule moved = schedule;
        drop(moved.ranks[rank], static_cast<int>(position));
        Actions& other = moved.ranks[(rank + 1) % moved.ranks.size()];
        insert(other, static_cast<int>(std::min(position, other.size())), action);
        expect_refused(moved, what + ": moved to another rank");
      }
    }
  }
  EXPECT_GT(faults, 2000);
}

TEST(CheckSchedule, AnOverlappedPairHoldsBothActivations) {
  const Schedule schedule = *read_schedule_text(
      "pipeline ranks=1 chunks=1 microbatches=3 placement=loop\nrank 0: F0 F1&BW0 F2&BW1 B2 W2\n", "test");
  const LiveChunks peak = (*check_schedule(schedule))[0];
  EXPECT_EQ(peak.activations, 2);
  EXPECT_EQ(peak.weight_inputs, 1);
  EXPECT_EQ(peak.together, 2);
}

TEST(CheckSchedule, OneRankNeedsNoTransfers) {
  const auto checked = check_schedule(sequential_schedule(3));
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ((*checked)[0].activations, 1);
  EXPECT_EQ((*checked)[0].weight_inputs, 0);
  Schedule schedule = sequential_schedule(2);
  std::swap(schedule.ranks[0][2], schedule.ranks[0][3]);
  EXPECT_EQ(check_schedule(schedule).error().message(),
            "schedule rank 0 position 2: BW(chunk 0, microbatch 1) comes before its forward");
  schedule.ranks[0].clear();
  schedule.num_microbatches = 0;
  EXPECT_EQ(check_schedule(schedule).error().message(), "schedule: ranks, chunks and microbatches must be at least 1");
}

}  // namespace
}  // namespace fivefold
