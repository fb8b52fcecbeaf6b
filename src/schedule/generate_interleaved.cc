// Interleaved 1F1B in the order of Megatron-LM (Narayanan et al. 2021): microbatches go in rounds of p through one
// chunk after the other.
#include <algorithm>

#include "schedule/families.h"

namespace fivefold {

Schedule interleaved_computations(int p, int v, int m) {
  Schedule schedule = empty_schedule(p, v, m, Placement::kLoop);
  const int total = m * v, round = p * v;
  const auto chunk_of = [&](int step) { return step % round / p; };
  const auto microbatch_of = [&](int step) { return step / round * p + step % p; };
  for (int rank = 0; rank < p; ++rank) {
    ComputationList list(schedule.ranks[static_cast<size_t>(rank)]);
    const int ahead = std::min(total, 2 * (p - rank - 1) + (v - 1) * p);
    const auto forward = [&](int step) { list.f(chunk_of(step), microbatch_of(step)); };
    for (int step = 0; step < ahead; ++step) forward(step);
    for (int step = 0; step < total; ++step) {
      if (step + ahead < total) forward(step + ahead);
      list.bw(v - 1 - chunk_of(step), microbatch_of(step));
    }
  }
  return schedule;
}

}  // namespace fivefold
