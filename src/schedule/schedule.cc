#include "schedule/schedule.h"

#include <algorithm>

namespace fivefold {

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
  return std::string(kNames[static_cast<size_t>(action.op)]) + "(chunk " + std::to_string(action.chunk) +
         ", microbatch " + std::to_string(action.microbatch) + ")";
}

Status check_schedule(const Schedule& schedule) {
  const auto count = static_cast<size_t>(schedule.chunks_per_rank) * static_cast<size_t>(schedule.num_microbatches);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::vector<int> forward(count, 0), backward(count, 0), input(count, 0), weight(count, 0);
    for (size_t position = 0; position < schedule.ranks[rank].size(); ++position) {
      const ScheduleAction& action = schedule.ranks[rank][position];
      const std::string where = "schedule rank " + std::to_string(rank) + " position " + std::to_string(position);
      if (action.chunk < 0 || action.chunk >= schedule.chunks_per_rank || action.microbatch < 0 ||
          action.microbatch >= schedule.num_microbatches)
        return Error{where, to_string(action) + " does not exist", ""};
      const size_t i = static_cast<size_t>(action.chunk) * static_cast<size_t>(schedule.num_microbatches) +
                       static_cast<size_t>(action.microbatch);
      switch (action.op) {
        case ScheduleOp::kForward:
          if (forward[i]++ != 0) return Error{where, to_string(action) + " is there twice", ""};
          break;
        case ScheduleOp::kBackward:
        case ScheduleOp::kBackwardInput:
          if (forward[i] == 0) return Error{where, to_string(action) + " comes before its forward", ""};
          if (backward[i]++ != 0) return Error{where, to_string(action) + " is there twice", ""};
          if (action.op == ScheduleOp::kBackwardInput) input[i] = 1;
          break;
        case ScheduleOp::kBackwardWeight:
          if (input[i] == 0) return Error{where, to_string(action) + " comes before its input gradient", ""};
          if (weight[i]++ != 0) return Error{where, to_string(action) + " is there twice", ""};
          break;
        default:
          break;
      }
    }
    for (size_t i = 0; i < count; ++i) {
      const int m = schedule.num_microbatches;
      const ScheduleAction missing{forward[i] == 0    ? ScheduleOp::kForward
                                   : backward[i] == 0 ? ScheduleOp::kBackward
                                                      : ScheduleOp::kBackwardWeight,
                                   static_cast<int>(i) / m, static_cast<int>(i) % m};
      if (forward[i] == 0 || backward[i] == 0 || (input[i] != 0 && weight[i] == 0))
        return Error{"schedule rank " + std::to_string(rank), to_string(missing) + " is missing", ""};
    }
  }
  return Ok{};
}

}  // namespace fivefold
