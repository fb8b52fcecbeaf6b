// ZB1P and ZB2P: the handcrafted schedules H1 and H2 of "Zero Bubble Pipeline Parallelism" (Qi et al. 2024). Backward
// is split; a rank puts its weight gradients off so that input gradients reach the first rank early and W fills what
// 1F1B leaves empty at the end.
#include <algorithm>

#include "schedule/families.h"

namespace fivefold {
namespace {

// Rank r goes `ahead` forwards ahead and keeps `behind` weight gradients back: ahead + 1 + behind is the number of
// microbatches that it holds at most.
void fill(std::vector<ScheduleAction>& actions, int m, int ahead, int behind) {
  ComputationList list(actions);
  for (int i = 0; i < std::min(m, ahead); ++i) list.f(0, i);
  for (int i = 0; i < m; ++i) {
    if (i + ahead < m) list.f(0, i + ahead);
    list.b(0, i);
    if (i >= behind) list.w(0, i - behind);
  }
  for (int i = std::max(0, m - behind); i < m; ++i) list.w(0, i);
}

}  // namespace

// p microbatches on every rank, as the first rank of 1F1B.
Schedule zb1p_computations(int p, int m) {
  Schedule schedule = empty_schedule(p, 1, m, Placement::kLoop);
  for (int rank = 0; rank < p; ++rank) fill(schedule.ranks[static_cast<size_t>(rank)], m, p - rank - 1, rank);
  return schedule;
}

// 2 p - 1 microbatches on every rank: the first one has enough forwards to compute until the first gradient is back.
Schedule zb2p_computations(int p, int m) {
  Schedule schedule = empty_schedule(p, 1, m, Placement::kLoop);
  for (int rank = 0; rank < p; ++rank) fill(schedule.ranks[static_cast<size_t>(rank)], m, 2 * (p - rank - 1), 2 * rank);
  return schedule;
}

}  // namespace fivefold
