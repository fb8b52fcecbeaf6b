// naive, GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2019, 2021).
#include <algorithm>

#include "schedule/families.h"

namespace fivefold {

// One microbatch at a time through the whole pipeline: one rank computes, the others wait.
Schedule naive_computations(int p, int m) {
  Schedule schedule = empty_schedule(p, 1, m, Placement::kLoop);
  for (auto& actions : schedule.ranks) {
    ComputationList list(actions);
    for (int i = 0; i < m; ++i) {
      list.f(0, i);
      list.bw(0, i);
    }
  }
  return schedule;
}

Schedule gpipe_computations(int p, int m) {
  Schedule schedule = empty_schedule(p, 1, m, Placement::kLoop);
  for (auto& actions : schedule.ranks) {
    ComputationList list(actions);
    for (int i = 0; i < m; ++i) list.f(0, i);
    for (int i = 0; i < m; ++i) list.bw(0, i);
  }
  return schedule;
}

// Rank r goes p - r - 1 forwards ahead, then alternates.
Schedule one_f_one_b_computations(int p, int m) {
  Schedule schedule = empty_schedule(p, 1, m, Placement::kLoop);
  for (int rank = 0; rank < p; ++rank) {
    ComputationList list(schedule.ranks[static_cast<size_t>(rank)]);
    const int ahead = std::min(m, p - rank - 1);
    for (int i = 0; i < ahead; ++i) list.f(0, i);
    for (int i = 0; i < m; ++i) {
      if (i + ahead < m) list.f(0, i + ahead);
      list.bw(0, i);
    }
  }
  return schedule;
}

}  // namespace fivefold
