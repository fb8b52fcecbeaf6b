#include "schedule/transfers.h"

#include <algorithm>
#include <tuple>

namespace fivefold {
namespace {

// In exact numbers: equal sums stay equal.
constexpr StageTimes kUsualTimes{.forward_s = 64, .backward_input_s = 65, .backward_weight_s = 63, .overlapped_s = 192};

// One end of a transfer on the rank that it is put on.
struct Placed {
  double time_s = 0;  // when the producer ends
  int sender = 0;     // with its position and the half of an FB: one order of the transfers of all ranks
  size_t position = 0;
  int half = 0;
  ScheduleAction action;

  bool operator<(const Placed& o) const {
    return std::tie(time_s, sender, position, half) < std::tie(o.time_s, o.sender, o.position, o.half);
  }
};

class Placing {
 public:
  Placing(const Schedule& computations, const Replay& replay)
      : computations_(computations), replay_(replay), placed_(computations.ranks.size()) {}

  Schedule run() {
    for (int rank = 0; rank < computations_.num_stages; ++rank) collect(rank);
    Schedule schedule = computations_;
    for (int rank = 0; rank < computations_.num_stages; ++rank)
      schedule.ranks[static_cast<size_t>(rank)] = merge(static_cast<size_t>(rank));
    return schedule;
  }

 private:
  void collect(int rank) {
    const auto& actions = computations_.ranks[static_cast<size_t>(rank)];
    for (size_t position = 0; position < actions.size(); ++position) {
      const ScheduleAction& action = actions[position];
      const bool overlapped = action.op == ScheduleOp::kOverlapped;
      if (action.op == ScheduleOp::kForward || overlapped)
        add(rank, position, 0, ScheduleOp::kSendForward, action.chunk, action.microbatch);
      if (overlapped)
        add(rank, position, 1, ScheduleOp::kSendBackward, action.backward_chunk, action.backward_microbatch);
      else if (action.op == ScheduleOp::kBackward || action.op == ScheduleOp::kBackwardInput)
        add(rank, position, 1, ScheduleOp::kSendBackward, action.chunk, action.microbatch);
    }
  }

  void add(int rank, size_t position, int half, ScheduleOp send, int chunk, int microbatch) {
    const int peer = peer_of(computations_, rank, send, chunk);
    if (peer < 0) return;
    const bool forward = send == ScheduleOp::kSendForward;
    const int receiving_stage = virtual_stage(computations_, rank, chunk) + (forward ? 1 : -1);
    Placed placed{.time_s = replay_.actions[static_cast<size_t>(rank)][position].end_s,
                  .sender = rank,
                  .position = position,
                  .half = half,
                  .action = {.op = send, .chunk = chunk, .microbatch = microbatch, .peer = peer}};
    placed_[static_cast<size_t>(rank)].push_back(placed);
    placed.action = {.op = forward ? ScheduleOp::kRecvForward : ScheduleOp::kRecvBackward,
                     .chunk = place_of(computations_, receiving_stage).chunk,
                     .microbatch = microbatch,
                     .peer = rank};
    placed_[static_cast<size_t>(peer)].push_back(placed);
  }

  std::vector<ScheduleAction> merge(size_t rank) {
    std::vector<Placed>& transfers = placed_[rank];
    std::sort(transfers.begin(), transfers.end());
    const auto& actions = computations_.ranks[rank];
    std::vector<ScheduleAction> merged;
    merged.reserve(actions.size() + transfers.size());
    size_t next = 0;
    for (size_t position = 0; position <= actions.size(); ++position) {
      bool joined = false;
      double before_s = 0;
      while (next < transfers.size() &&
             (position == actions.size() || replay_.actions[rank][position].end_s > transfers[next].time_s)) {
        merged.push_back(transfers[next].action);
        merged.back().joined = joined && transfers[next].time_s == before_s;
        before_s = transfers[next++].time_s;
        joined = true;
      }
      if (position < actions.size()) merged.push_back(actions[position]);
    }
    return merged;
  }

  const Schedule& computations_;
  const Replay& replay_;
  std::vector<std::vector<Placed>> placed_;  // per rank
};

}  // namespace

Result<Schedule> add_transfers(const Schedule& computations, const std::vector<StageTimes>& times) {
  for (const StageTimes& time : times)
    FIVEFOLD_CHECK(time.forward_s > 0 && time.backward_input_s > 0 && time.backward_weight_s > 0 &&
                   time.overlapped_s > 0);
  FIVEFOLD_TRY(check_computations(computations));
  FIVEFOLD_ASSIGN(const Replay replay, replay_computations(computations, times));
  return Placing(computations, replay).run();
}

Result<Schedule> add_transfers(const Schedule& computations) {
  return add_transfers(computations,
                       std::vector<StageTimes>(static_cast<size_t>(computations.num_virtual_stages()), kUsualTimes));
}

Schedule without_transfers(const Schedule& schedule) {
  Schedule computations = schedule;
  for (auto& actions : computations.ranks)
    std::erase_if(actions, [](const ScheduleAction& action) { return is_transfer(action.op); });
  return computations;
}

}  // namespace fivefold
