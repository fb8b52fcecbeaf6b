#include "schedule/picture.h"

#include <gtest/gtest.h>

#include "schedule/generate.h"

namespace fivefold {
namespace {

std::string drawn(ScheduleKind kind, int p, int v, int m, double seconds_per_column) {
  const Schedule schedule = *generate(kind, p, v, m);
  return draw_schedule(schedule, replay(schedule, StageTimes{}, 0), seconds_per_column);
}

TEST(Picture, DashesLastAsLongAsTheComputationAndDotsAreWaiting) {
  EXPECT_EQ(drawn(ScheduleKind::k1F1B, 2, 1, 1, 1.0 / 3),
            "rank 0  |F0 .........BW0-- |\n"
            "rank 1  |...F0 BW0-- ......|\n");
}

TEST(Picture, SecondChunksAreSmallAndMoreHaveNumbers) {
  EXPECT_EQ(drawn(ScheduleKind::kInterleaved, 1, 2, 1, 0.25), "rank 0  |F0- f0- bw0---- BW0---- |\n");
  EXPECT_EQ(drawn(ScheduleKind::kInterleaved, 1, 3, 1, 0.25), "rank 0  |F0.0F1.0F2.0BW2.0-- BW1.0-- BW0.0-- |\n");
  EXPECT_EQ(drawn(ScheduleKind::kDualPipeV, 1, 2, 2, 0.25),
            "rank 0  |F0- f0- F1- bw0---- f1&BW0----- bw1---- B1- W1- |\n");
}

TEST(Picture, LongLabelsAreCut) { EXPECT_EQ(drawn(ScheduleKind::kInterleaved, 1, 3, 1, 1.0), "rank 0  |FFFBWBWBW|\n"); }

}  // namespace
}  // namespace fivefold
