#include "schedule/generate.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fivefold {
namespace {

constexpr ScheduleKind kKinds[] = {ScheduleKind::kNaive,       ScheduleKind::kGPipe, ScheduleKind::k1F1B,
                                   ScheduleKind::kInterleaved, ScheduleKind::kZb1p,  ScheduleKind::kZb2p,
                                   ScheduleKind::kZbv,         ScheduleKind::kVHalf, ScheduleKind::kVMin,
                                   ScheduleKind::kDualPipeV};

// The domain, written down apart from the generator.
bool in_domain(ScheduleKind kind, int p, int v, int m) {
  switch (kind) {
    case ScheduleKind::kInterleaved:
      return v > 1 && m % p == 0;
    case ScheduleKind::kZbv:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
      return v == 2;
    case ScheduleKind::kDualPipeV:
      return v == 2 && m >= 2 * p;
    default:
      return v == 1;
  }
}

// Peaks of rank r in chunks: docs/schedules.md.
void expect_peaks(ScheduleKind kind, int p, int v, int m, int r, const LiveChunks& peak) {
  switch (kind) {
    case ScheduleKind::kNaive:
      EXPECT_EQ(peak.activations, 1);
      EXPECT_EQ(peak.together, 1);
      break;
    case ScheduleKind::kGPipe:
      EXPECT_EQ(peak.activations, m);
      EXPECT_EQ(peak.together, m);
      break;
    case ScheduleKind::k1F1B:
      EXPECT_EQ(peak.activations, std::min(m, p - r));
      EXPECT_EQ(peak.together, std::min(m, p - r));
      break;
    case ScheduleKind::kInterleaved:
      EXPECT_EQ(peak.activations, std::min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1));
      EXPECT_EQ(peak.together, peak.activations);
      break;
    case ScheduleKind::kZb1p:  // as 1F1B, and r weight gradients that wait, r + 1 from B to the W that follows
      EXPECT_EQ(peak.activations, std::min(m, p - r));
      EXPECT_EQ(peak.weight_inputs, std::min(m, r + 1));
      EXPECT_EQ(peak.together, std::min(m, p));
      break;
    case ScheduleKind::kZb2p:  // about twice
      EXPECT_EQ(peak.activations, std::min(m, 2 * (p - r) - 1));
      EXPECT_EQ(peak.weight_inputs, std::min(m, 2 * r + 1));
      EXPECT_EQ(peak.together, std::min(m, 2 * p - 1));
      break;
    default:
      break;
  }
}

// The V schedules: the most that any rank holds, activations and inputs of weight gradients together.
int most_chunks(ScheduleKind kind, int p, int m) {
  switch (kind) {
    case ScheduleKind::kZbv:  // as 1F1B: p microbatches of two chunks
      return std::min(2 * m, 2 * p);
    case ScheduleKind::kVHalf:
      return std::min(2 * m, 2 * ((p + 2) / 2));
    case ScheduleKind::kVMin:
      return std::min(2 * m, 2 * ((p + 4) / 3));
    case ScheduleKind::kDualPipeV:
      return 2 * p + 1;
    default:
      return 0;
  }
}

TEST(Generate, EveryScheduleOfTheDomainPassesTheCheckAtItsMemory) {
  int generated = 0;
  for (const ScheduleKind kind : kKinds) {
    for (int p = 1; p <= 16; ++p) {
      for (int v = 1; v <= 4; ++v) {
        for (int m = 1; m <= 64; ++m) {
          SCOPED_TRACE(std::string(to_string(kind)) + " p " + std::to_string(p) + " v " + std::to_string(v) + " m " +
                       std::to_string(m));
          const auto schedule = generate(kind, p, v, m);
          ASSERT_EQ(schedule.ok(), in_domain(kind, p, v, m));
          if (!schedule.ok()) {
            EXPECT_FALSE(schedule.error().hint.empty());
            continue;
          }
          ++generated;
          const auto peaks = check_schedule(*schedule);
          ASSERT_TRUE(peaks.ok()) << peaks.error().message();
          int most = 0;
          for (int r = 0; r < p; ++r) {
            expect_peaks(kind, p, v, m, r, (*peaks)[static_cast<size_t>(r)]);
            most = std::max(most, (*peaks)[static_cast<size_t>(r)].together);
          }
          if (most_chunks(kind, p, m) > 0) {
            EXPECT_EQ(most, most_chunks(kind, p, m));
          }
          if (HasFailure()) return;
        }
      }
    }
  }
  // Eight kinds with all (p, m); interleaved with 3 v and the multiples of p; DualPipeV with m from 2 p.
  int multiples = 0, from_2p = 0;
  for (int p = 1; p <= 16; ++p) {
    multiples += 64 / p;
    from_2p += 64 - 2 * p + 1;
  }
  EXPECT_EQ(generated, 8 * 16 * 64 + 3 * multiples + from_2p);
}

TEST(Generate, RefusesOutsideTheDomainWithTheNearestSetting) {
  const auto refusal = [](ScheduleKind kind, int p, int v, int m) { return generate(kind, p, v, m).error().message(); };
  EXPECT_EQ(refusal(ScheduleKind::kGPipe, 4, 2, 8),
            "schedule gpipe: has one chunk a rank, not 2 (use 1, or interleaved)");
  EXPECT_EQ(refusal(ScheduleKind::kInterleaved, 4, 1, 8),
            "schedule interleaved: needs several chunks a rank, not 1 (use 2, or 1f1b)");
  EXPECT_EQ(refusal(ScheduleKind::kInterleaved, 4, 2, 6),
            "schedule interleaved: takes the microbatches in rounds of p: 6 is not a multiple of 4 (use 4 or 8)");
  EXPECT_EQ(refusal(ScheduleKind::kInterleaved, 4, 2, 3),
            "schedule interleaved: takes the microbatches in rounds of p: 3 is not a multiple of 4 (use 4)");
  EXPECT_EQ(refusal(ScheduleKind::kZbv, 4, 3, 8), "schedule zbv: has two chunks a rank, not 3 (use 2)");
  EXPECT_EQ(refusal(ScheduleKind::kDualPipeV, 4, 2, 7),
            "schedule dualpipev: needs at least 2 p = 8 microbatches, there are 7 (use 8)");
  EXPECT_EQ(refusal(ScheduleKind::k1F1B, 0, 1, 8), "schedule 1f1b: 0 ranks (use 1 or more)");
  EXPECT_EQ(refusal(ScheduleKind::k1F1B, 4, 0, 8), "schedule 1f1b: 0 chunks a rank (use 1 or more)");
  EXPECT_EQ(refusal(ScheduleKind::k1F1B, 4, 1, 0), "schedule 1f1b: 0 microbatches (use 1 or more)");
}

}  // namespace
}  // namespace fivefold
