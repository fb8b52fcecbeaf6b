// The transfers of a schedule: adding them to computations, and finding the two ends of each.
#pragma once

#include "schedule/replay.h"
#include "schedule/schedule.h"

namespace fivefold {

// Adds sends and receives to a schedule of computations, as if computations took `times`.
//
// Note [Placing transfers]. The computations are replayed with transfers that take no time. A transfer then happens at
// t, when its producer ends. On either rank it is put before the first computation that ends after t. Every list is so
// a part of one order of all events (computations by their end, transfers by t; at equal time computations first), in
// which each event finds what it needs done before it: executed in that order nothing ever waits, so no order of the
// lists can be a deadlock, also when each transfer holds up its rank until the other end is there. A receive stands
// before the computation during which its data arrives, so the sender finds it waiting. Transfers of a rank at the same
// t are joined: the two directions of an exchange then share the time.
//
// REQUIRES: times above zero. Errors: as check_computations, and computations that wait for each other in a circle.
Result<Schedule> add_transfers(const Schedule& computations, const std::vector<StageTimes>& times);
// With the usual times: F, B and W take about as long, B a little longer and W a little less, FB as long as its parts.
// With exactly equal times many computations of two ranks end at once, and a receive would stand behind one that in a
// run ends just after the send: measured over random times within 30 %, the in-order transfers then cost ZB1P and
// V-half 1.9 % of a step, and 0.0 % with these.
Result<Schedule> add_transfers(const Schedule& computations);
// The schedule without its transfers.
Schedule without_transfers(const Schedule& schedule);

// The index of a message among 2 p v m: its direction, the virtual stage that receives it, the microbatch.
inline size_t message_index(const Schedule& schedule, int rank, const ScheduleAction& transfer) {
  const bool forward = transfer.op == ScheduleOp::kSendForward || transfer.op == ScheduleOp::kRecvForward;
  int stage = virtual_stage(schedule, rank, transfer.chunk);
  if (is_send(transfer.op)) stage += forward ? 1 : -1;
  const int row = (forward ? 0 : schedule.num_virtual_stages()) + stage;
  return static_cast<size_t>(row) * static_cast<size_t>(schedule.num_microbatches) +
         static_cast<size_t>(transfer.microbatch);
}
inline size_t num_messages(const Schedule& schedule) {
  return 2 * static_cast<size_t>(schedule.num_virtual_stages()) * static_cast<size_t>(schedule.num_microbatches);
}

}  // namespace fivefold
