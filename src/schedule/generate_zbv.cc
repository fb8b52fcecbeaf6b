// ZBV of "Zero Bubble Pipeline Parallelism" (Qi et al. 2024): chunks in a V, so that the first rank has the loss and
// starts backward soonest; 2 p chunks on every rank, the memory of 1F1B. The order is the handcrafted one, which
// PyTorch's ScheduleZBVZeroBubble has too.
#include <algorithm>

#include "schedule/families.h"

namespace fivefold {
namespace {

// The next microbatch of each kind of computation of a rank. What is beyond the last microbatch is left out: the order
// is that of a step that is long enough to fill the pipeline.
class Counted {
 public:
  Counted(std::vector<ScheduleAction>& actions, int m) : list_(actions), m_(m) {}

  void f(int chunk) {
    next(forwards_[chunk], [&](int i) { list_.f(chunk, i); });
  }
  void b(int chunk) {
    next(inputs_[chunk], [&](int i) { list_.b(chunk, i); });
  }
  void w(int chunk) {
    next(weights_[chunk], [&](int i) { list_.w(chunk, i); });
  }
  void bw(int chunk) {
    b(chunk);
    w(chunk);
  }
  int forwards(int chunk) const { return forwards_[chunk]; }
  int waiting(int chunk) const { return inputs_[chunk] - weights_[chunk]; }

 private:
  template <typename Put>
  void next(int& count, Put put) {
    if (count < m_) put(count);
    ++count;
  }

  ComputationList list_;
  const int m_;
  int forwards_[2] = {0, 0}, inputs_[2] = {0, 0}, weights_[2] = {0, 0};
};

}  // namespace

Schedule zbv_computations(int p, int m) {
  Schedule schedule = empty_schedule(p, 2, m, Placement::kV);
  const int filled = std::max(m, 2 * p - 1);
  for (int rank = 0; rank < p; ++rank) {
    Counted next(schedule.ranks[static_cast<size_t>(rank)], m);
    const int to_turn = p - rank;  // ranks to the turn of the V, this one included
    // Until the first microbatch is back from the turn, then until its gradient is back from the loss.
    for (int i = 0; i < 2 * to_turn - 1; ++i) next.f(0);
    for (int i = 0; i < rank; ++i) {
      next.f(1);
      next.f(0);
    }
    for (int i = 0; i < to_turn; ++i) {
      next.f(1);
      next.bw(1);
    }
    while (next.forwards(1) < filled) {
      if (next.forwards(0) < filled) next.f(0);
      next.bw(0);
      next.f(1);
      next.bw(1);
    }
    // Gradients first for the ranks that wait for them, then what was put off.
    for (int i = 0; i < rank; ++i) {
      next.b(0);
      next.b(1);
    }
    for (int i = 0; i < to_turn; ++i) {
      next.b(0);
      next.w(0);
    }
    while (next.waiting(1) > 0) next.w(1);
    while (next.waiting(0) > 0) next.w(0);
  }
  return schedule;
}

}  // namespace fivefold
