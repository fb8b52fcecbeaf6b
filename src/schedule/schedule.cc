#include "schedule/schedule.h"

namespace fivefold {

int virtual_stage(const Schedule& schedule, int rank, int chunk) {
  return virtual_stage(schedule.placement, schedule.num_stages, rank, chunk);
}

ChunkPlace place_of(const Schedule& schedule, int virtual_stage) {
  const int p = schedule.num_stages, chunk = virtual_stage / p, offset = virtual_stage % p;
  if (schedule.placement == Placement::kV && chunk % 2 == 1) return {p - 1 - offset, chunk};
  return {offset, chunk};
}

int peer_of(const Schedule& schedule, int rank, ScheduleOp op, int chunk) {
  FIVEFOLD_CHECK(is_transfer(op));
  const bool onward = op == ScheduleOp::kSendForward || op == ScheduleOp::kRecvBackward;
  const int other = virtual_stage(schedule, rank, chunk) + (onward ? 1 : -1);
  if (other < 0 || other >= schedule.num_virtual_stages()) return -1;
  const int peer = place_of(schedule, other).rank;
  return peer == rank ? -1 : peer;
}

Schedule sequential_schedule(int num_microbatches) {
  FIVEFOLD_CHECK(num_microbatches >= 1);
  Schedule schedule;
  schedule.num_microbatches = num_microbatches;
  schedule.ranks.resize(1);
  for (int i = 0; i < num_microbatches; ++i) {
    schedule.ranks[0].push_back({ScheduleOp::kForward, 0, i});
    schedule.ranks[0].push_back({ScheduleOp::kBackward, 0, i});
  }
  return schedule;
}

std::string to_string(const ScheduleAction& action) {
  static constexpr const char* kNames[] = {"F", "BW", "B", "W", "FB", "SendF", "RecvF", "SendB", "RecvB"};
  std::string text = std::string(kNames[static_cast<size_t>(action.op)]) + "(chunk " + std::to_string(action.chunk) +
                     ", microbatch " + std::to_string(action.microbatch);
  if (action.op == ScheduleOp::kOverlapped)
    text += " with chunk " + std::to_string(action.backward_chunk) + ", microbatch " +
            std::to_string(action.backward_microbatch);
  if (is_transfer(action.op))
    text += std::string(is_send(action.op) ? ", to" : ", from") + " rank " + std::to_string(action.peer);
  return text + ")";
}

}  // namespace fivefold
