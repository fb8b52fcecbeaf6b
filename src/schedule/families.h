// One generator per family of schedules: the computations of each rank, without transfers. generate() has checked the
// domain and adds the transfers.
#pragma once

#include "schedule/schedule.h"

namespace fivefold {

// What all generators write into: one list of a rank's computations.
class ComputationList {
 public:
  explicit ComputationList(std::vector<ScheduleAction>& actions) : actions_(actions) {}

  void f(int chunk, int microbatch) { actions_.push_back({ScheduleOp::kForward, chunk, microbatch}); }
  void bw(int chunk, int microbatch) { actions_.push_back({ScheduleOp::kBackward, chunk, microbatch}); }
  void b(int chunk, int microbatch) { actions_.push_back({ScheduleOp::kBackwardInput, chunk, microbatch}); }
  void w(int chunk, int microbatch) { actions_.push_back({ScheduleOp::kBackwardWeight, chunk, microbatch}); }
  void fb(int chunk, int microbatch, int backward_chunk, int backward_microbatch) {
    actions_.push_back({ScheduleOp::kOverlapped, chunk, microbatch, backward_chunk, backward_microbatch});
  }

 private:
  std::vector<ScheduleAction>& actions_;
};

// Ranks without actions, the places filled in.
Schedule empty_schedule(int p, int v, int m, Placement placement);

Schedule naive_computations(int p, int m);
Schedule gpipe_computations(int p, int m);
Schedule one_f_one_b_computations(int p, int m);
Schedule interleaved_computations(int p, int v, int m);
Schedule zb1p_computations(int p, int m);
Schedule zb2p_computations(int p, int m);
Schedule zbv_computations(int p, int m);
Schedule v_half_computations(int p, int m);
Schedule v_min_computations(int p, int m);
Schedule dualpipev_computations(int p, int m);

}  // namespace fivefold
