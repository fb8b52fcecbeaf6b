#include "schedule/replay.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/generate.h"
#include "schedule/schedule_file.h"
#include "schedule/transfers.h"

namespace fivefold {
namespace {

// Times are small integers or binary fractions, so sums are exact.
StageTimes times(double f, double b, double w) { return {f, b, w, f + b + w}; }

// The schedule with its transfers put where they belong when computations take `time`.
Schedule laid_out(ScheduleKind kind, int p, int v, int m, const StageTimes& time) {
  const Schedule schedule = *generate(kind, p, v, m);
  return *add_transfers(without_transfers(schedule),
                        std::vector(static_cast<size_t>(schedule.num_virtual_stages()), time));
}

// Calls `visit(p, m)` over the ranks and microbatches of the issue.
template <typename Visit>
void for_each_size(Visit visit) {
  for (int p = 1; p <= 16; ++p) {
    for (int m = 1; m <= 64; ++m) {
      SCOPED_TRACE("p " + std::to_string(p) + " m " + std::to_string(m));
      visit(p, m);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(Replay, TwoRanksByHand) {
  // Virtual stage 0 takes F 1, BW 2, virtual stage 1 F 2, BW 4; a transfer half a unit. Rank 0: F0 0-1, F1 1-2. F0
  // reaches rank 1 at 1.5: F0 1.5-3.5. Its list asks for F1 then: 3.5-4. BW0 3.5-7.5, its gradient on rank 0 at 8: BW0
  // 8-10. F1 on rank 1 7.5-9.5, BW1 9.5-13.5, on rank 0 at 14: BW1 14-16.
  const Schedule schedule = *read_schedule_text(
      "pipeline ranks=2 chunks=1 microbatches=2 placement=loop\n"
      "rank 0: F0 SendF0>1 F1 SendF1>1 RecvB0<1 BW0 RecvB1<1 BW1\n"
      "rank 1: RecvF0<0 F0 RecvF1<0 BW0 SendB0>0 F1 BW1 SendB1>0\n",
      "test");
  const Replay out = replay(schedule, {times(1, 1, 1), times(2, 2, 2)}, 0.5);
  const std::vector<std::vector<std::pair<double, double>>> expected = {
      {{0, 1}, {1, 1.5}, {1, 2}, {3.5, 4}, {7.5, 8}, {8, 10}, {13.5, 14}, {14, 16}},
      {{1, 1.5}, {1.5, 3.5}, {3.5, 4}, {3.5, 7.5}, {7.5, 8}, {7.5, 9.5}, {9.5, 13.5}, {13.5, 14}}};
  for (size_t rank = 0; rank < 2; ++rank) {
    for (size_t position = 0; position < 8; ++position) {
      EXPECT_EQ(out.actions[rank][position].start_s, expected[rank][position].first) << rank << " " << position;
      EXPECT_EQ(out.actions[rank][position].end_s, expected[rank][position].second) << rank << " " << position;
    }
  }
  EXPECT_EQ(out.makespan_s, 16);
  EXPECT_EQ(out.ranks[0].busy_s, 6);
  EXPECT_EQ(out.ranks[1].busy_s, 12);
  EXPECT_EQ(out.bubble_s(1), 4);
  EXPECT_EQ(out.ranks[1].first_s, 1.5);
  EXPECT_EQ(out.ranks[1].idle_s(), 0);
}

// Joined transfers start together and are complete together; after the first exchange both ranks are half a unit later
// per transfer that stands in the way. F0 0-1, sent 1-1.5; F1 1-2, sent 2.5-3 when rank 1 has done F0 (1.5-2.5); BW0 on
// rank 1 2.5-4.5, on rank 0 5-7, F2 7-8; rank 1 is ready for the exchange at 7.5, rank 0 at 8: 8-8.5. BW1 on rank 0
// 8.5-10.5; F2, BW2 on rank 1 8.5-11.5; BW2 on rank 0 12-14.
TEST(Replay, JoinedTransfersShareTheirTime) {
  const Schedule schedule = *generate(ScheduleKind::k1F1B, 2, 1, 3);
  const Replay out = replay(schedule, times(1, 1, 1), 0.5);
  EXPECT_EQ(out.actions[0][7].start_s, 8);
  EXPECT_EQ(out.actions[0][8].start_s, 8);
  EXPECT_EQ(out.actions[0][8].end_s, 8.5);
  EXPECT_EQ(out.actions[1][9].start_s, 8.5);
  EXPECT_EQ(out.makespan_s, 14);
}

// F0 of rank 0 is sent 1-4. F1 is there at 2 and rank 1 has asked for it, but it waits: 4-7. So do the gradients, which
// are there at 10 and 12: 10-13, 13-16. BW0 13-15, BW1 16-18.
TEST(Replay, TransfersOfARankFollowEachOther) {
  const Schedule schedule = *read_schedule_text(
      "pipeline ranks=2 chunks=1 microbatches=2 placement=loop\n"
      "rank 0: F0 SendF0>1 F1 SendF1>1 RecvB0<1 RecvB1<1 BW0 BW1\n"
      "rank 1: RecvF0<0 RecvF1<0 F0 F1 BW0 SendB0>0 BW1 SendB1>0\n",
      "test");
  const Replay out = replay(schedule, times(1, 1, 1), 3);
  EXPECT_EQ(out.actions[0][3].start_s, 4);
  EXPECT_EQ(out.actions[1][7].start_s, 13);
  EXPECT_EQ(out.makespan_s, 18);
}

TEST(Replay, LiveActivationsOverTime) {
  // ZB1P on the second of two ranks: F0 1-2, B0 2-3, F1 3-4, B1 4-5, W0 5-6, W1 6-7.
  const Schedule schedule = *generate(ScheduleKind::kZb1p, 2, 1, 2);
  const auto points = live_over_time(schedule, replay(schedule, times(1, 1, 1), 0), 1);
  const std::vector<std::tuple<double, int, int>> expected = {{1, 1, 0}, {3, 0, 1}, {3, 1, 1},
                                                              {5, 0, 2}, {6, 0, 1}, {7, 0, 0}};
  ASSERT_EQ(points.size(), expected.size());
  for (size_t i = 0; i < points.size(); ++i)
    EXPECT_EQ(std::tuple(points[i].time_s, points[i].activations, points[i].weight_inputs), expected[i]) << i;
}

// One microbatch at a time: a rank computes 1/p of the step.
TEST(Bubble, NaiveIsAllButOneRank) {
  for (const StageTimes& time : {times(1, 1, 1), times(2, 5, 3)}) {
    for_each_size([&](int p, int m) {
      const Replay out = replay(*generate(ScheduleKind::kNaive, p, 1, m), time, 0);
      EXPECT_EQ(out.bubble_s(0), (p - 1) * m * (time.forward_s + time.backward_s()));
      EXPECT_EQ(out.bubble_s(0) / out.makespan_s, (p - 1.0) / p);
    });
  }
}

// (p - 1)(F + B + W), a share (p - 1) / (m + p - 1): the first microbatch's way to the last rank and back.
TEST(Bubble, GPipeAnd1F1B) {
  for (const StageTimes& time : {times(1, 1, 1), times(2, 5, 3), times(4, 1, 2)}) {
    for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::k1F1B}) {
      for_each_size([&](int p, int m) {
        const Replay out = replay(*generate(kind, p, 1, m), time, 0);
        for (int rank = 0; rank < p; ++rank)
          EXPECT_EQ(out.bubble_s(rank), (p - 1) * (time.forward_s + time.backward_s()));
        EXPECT_DOUBLE_EQ(out.bubble_s(0) / out.makespan_s, (p - 1.0) / (m + p - 1));
      });
    }
  }
}

// The same of one chunk, so 1/v of 1F1B's. Times here are a chunk's.
TEST(Bubble, InterleavedIsDividedByTheChunks) {
  for (const StageTimes& time : {times(1, 1, 1), times(2, 5, 3), times(4, 1, 2)}) {
    for (int v = 2; v <= 4; ++v) {
      for_each_size([&](int p, int m) {
        if (m % p != 0) return;
        const Replay out = replay(laid_out(ScheduleKind::kInterleaved, p, v, m, time), time, 0);
        EXPECT_EQ(out.bubble_s(0), (p - 1) * (time.forward_s + time.backward_s()));
        EXPECT_DOUBLE_EQ(out.bubble_s(0) / out.makespan_s, (p - 1.0) / (v * m + p - 1));
      });
    }
  }
}

// (p - 1)(F + B - W) when W is no longer than F and B, and m >= p; more elsewhere.
TEST(Bubble, Zb1pFillsTheEndWithWeightGradients) {
  for (const StageTimes& time : {times(1, 1, 1), times(2, 3, 1), times(5, 2, 1), times(3, 2, 2), times(1, 3, 2),
                                 times(5, 1, 2), times(1, 1, 2)}) {
    const double f_s = time.forward_s, b_s = time.backward_input_s, w_s = time.backward_weight_s;
    for_each_size([&](int p, int m) {
      const double bubble_s = replay(laid_out(ScheduleKind::kZb1p, p, 1, m, time), time, 0).bubble_s(0);
      if (w_s <= f_s && w_s <= b_s && m >= p)
        EXPECT_EQ(bubble_s, (p - 1) * (f_s + b_s - w_s));
      else
        EXPECT_GE(bubble_s, (p - 1) * (f_s + b_s - w_s));
    });
  }
}

// No waiting on any rank when F = B = W and m >= 2 p - 1. The ranks still start one F after each other.
TEST(Bubble, Zb2pAndZbvHaveNoneWithinARanksOwnSpan) {
  for_each_size([&](int p, int m) {
    if (m < 2 * p - 1) return;
    for (const ScheduleKind kind : {ScheduleKind::kZb2p, ScheduleKind::kZbv}) {
      const Replay out = replay(*generate(kind, p, kind == ScheduleKind::kZbv ? 2 : 1, m), times(1, 1, 1), 0);
      for (const RankTime& rank : out.ranks) EXPECT_EQ(rank.idle_s(), 0);
      EXPECT_EQ(out.bubble_s(0), p - 1);
    }
  });
}

// (p - 1)(FB + B - 2W), FB the overlapped pair, on the rank that waits most: exact for F = B >= W and FB >= B + W, a
// bound when F is shorter.
TEST(Bubble, DualPipeV) {
  const auto longest_bubble_s = [](int p, int m, const StageTimes& time) {
    const Replay out = replay(laid_out(ScheduleKind::kDualPipeV, p, 2, m, time), time, 0);
    double longest_s = 0;
    for (int rank = 0; rank < p; ++rank) longest_s = std::max(longest_s, out.bubble_s(rank));
    return longest_s;
  };
  const auto form_s = [](int p, const StageTimes& time) {
    return (p - 1) * (time.overlapped_s + time.backward_input_s - 2 * time.backward_weight_s);
  };
  for_each_size([&](int p, int m) {
    if (m < 2 * p) return;
    for (const StageTimes& time : {StageTimes{1, 1, 1, 3}, StageTimes{4, 4, 4, 9}, StageTimes{3, 3, 2, 8},
                                   StageTimes{3, 3, 2, 6}, StageTimes{4, 4, 1, 5}})
      EXPECT_EQ(longest_bubble_s(p, m, time), form_s(p, time));
    for (const StageTimes& time : {StageTimes{2, 3, 1, 6}, StageTimes{2, 3, 1, 4.5}})
      EXPECT_LE(longest_bubble_s(p, m, time), form_s(p, time));
  });
}

// Units without computation in a step of the authors' code (sail-sg/zero-bubble-pipeline-parallelism, zbv_greedy.py,
// run with F = B = W = 1): the same for m = 16, 32 and 64.
TEST(Bubble, VHalfAndVMinAreNearTheAuthorsCode) {
  struct Case {
    int p;
    double v_half, v_min;
  };
  for (const Case& c : {Case{2, 1, 3}, Case{3, 5, 5}, Case{4, 5, 11}, Case{5, 11, 15}, Case{6, 11, 17}, Case{8, 17, 27},
                        Case{12, 29, 41}, Case{16, 41, 59}}) {
    for (const int m : {16, 32, 64}) {
      const auto bubble_s = [&](ScheduleKind kind) {
        return replay(*generate(kind, c.p, 2, m), times(1, 1, 1), 0).bubble_s(0);
      };
      EXPECT_LE(bubble_s(ScheduleKind::kVHalf), c.v_half + 4) << "p " << c.p << " m " << m;
      EXPECT_LE(bubble_s(ScheduleKind::kVMin), c.v_min) << "p " << c.p << " m " << m;
    }
  }
}

// What the schedules are for: less bubble at the same memory, or less memory.
TEST(Bubble, OrderOfTheSchedules) {
  for (int p = 2; p <= 16; ++p) {
    const int m = 4 * p;
    SCOPED_TRACE(p);
    const auto bubble = [&](ScheduleKind kind, int v) {
      return replay(*generate(kind, p, v, m), times(2 / v, 2 / v, 2 / v), 0).bubble_s(0);
    };
    const double zbv = bubble(ScheduleKind::kZbv, 2), half = bubble(ScheduleKind::kVHalf, 2),
                 min = bubble(ScheduleKind::kVMin, 2), one = bubble(ScheduleKind::k1F1B, 1);
    EXPECT_LT(bubble(ScheduleKind::kInterleaved, 2), one);
    EXPECT_LT(bubble(ScheduleKind::kZb1p, 1), one);
    EXPECT_LT(zbv, bubble(ScheduleKind::kZb1p, 1));
    EXPECT_LE(zbv, half);
    EXPECT_LE(half, min);
    EXPECT_LT(min, one);
  }
}

// With transfers put where Note [Placing transfers] says, those that take no time delay nothing, whatever the times.
TEST(Transfers, ThoseThatTakeNoTimeDelayNothing) {
  for (const ScheduleKind kind : {ScheduleKind::k1F1B, ScheduleKind::kInterleaved, ScheduleKind::kZb1p,
                                  ScheduleKind::kZbv, ScheduleKind::kVMin, ScheduleKind::kDualPipeV}) {
    const int v = kind == ScheduleKind::k1F1B || kind == ScheduleKind::kZb1p ? 1 : 2;
    for (const int p : {2, 3, 5, 8}) {
      const Schedule computations = without_transfers(*generate(kind, p, v, 2 * p));
      std::vector<StageTimes> uneven;
      for (int stage = 0; stage < p * v; ++stage)
        uneven.push_back(times(1 + stage * 7 % 5, 2 + stage * 3 % 4, 1 + stage * 5 % 3));
      const Schedule schedule = *add_transfers(computations, uneven);
      ASSERT_TRUE(check_schedule(schedule).ok());
      const Replay with = replay(schedule, uneven, 0), without = *replay_computations(computations, uneven);
      EXPECT_EQ(with.makespan_s, without.makespan_s);
      double before_s = with.makespan_s;
      for (const double transfer_s : {0.125, 0.5, 2.0}) {
        const double makespan_s = replay(schedule, uneven, transfer_s).makespan_s;
        EXPECT_GE(makespan_s, before_s);
        before_s = makespan_s;
      }
    }
  }
}

// The lists of generate() are for no times in particular: within a tenth of F = B = W the in-order transfers cost less
// than 0.5 % of a step.
TEST(Transfers, GeneratedListsSuitTimesThatAreNotKnown) {
  for (const ScheduleKind kind :
       {ScheduleKind::k1F1B, ScheduleKind::kInterleaved, ScheduleKind::kZb1p, ScheduleKind::kZb2p, ScheduleKind::kZbv,
        ScheduleKind::kVHalf, ScheduleKind::kVMin, ScheduleKind::kDualPipeV}) {
    const bool one_chunk = kind == ScheduleKind::k1F1B || kind == ScheduleKind::kZb1p || kind == ScheduleKind::kZb2p;
    for (const int p : {2, 4, 8, 16}) {
      const Schedule schedule = *generate(kind, p, one_chunk ? 1 : 2, 4 * p);
      const StageTimes time = times(20, 22, 18);
      const std::vector<StageTimes> all(static_cast<size_t>(schedule.num_virtual_stages()), time);
      const double least_s = replay_computations(without_transfers(schedule), all)->makespan_s;
      EXPECT_LT(replay(schedule, all, 0).makespan_s, 1.005 * least_s) << to_string(kind) << " p " << p;
    }
  }
}

TEST(Transfers, ComputationsThatWaitForEachOtherAreRefused) {
  // Rank 0 wants the gradient of microbatch 0 before it sends microbatch 1, rank 1 microbatch 1 before the gradient.
  Schedule schedule = without_transfers(*generate(ScheduleKind::k1F1B, 2, 1, 2));
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);
  std::swap(schedule.ranks[1][1], schedule.ranks[1][2]);
  EXPECT_EQ(add_transfers(schedule).error().message(),
            "schedule rank 0 position 1: BW(chunk 0, microbatch 0) waits for ever for what another rank should compute "
            "before");
}

}  // namespace
}  // namespace fivefold
