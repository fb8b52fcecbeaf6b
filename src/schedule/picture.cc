#include "schedule/picture.h"

#include <algorithm>
#include <cmath>

namespace fivefold {
namespace {

std::string label(const Schedule& schedule, const char* capital, const char* small, int chunk, int microbatch) {
  if (schedule.chunks_per_rank > 2) return capital + std::to_string(chunk) + "." + std::to_string(microbatch);
  return (chunk == 0 ? capital : small) + std::to_string(microbatch);
}

std::string label(const Schedule& schedule, const ScheduleAction& action) {
  const int chunk = action.chunk, microbatch = action.microbatch;
  switch (action.op) {
    case ScheduleOp::kForward:
      return label(schedule, "F", "f", chunk, microbatch);
    case ScheduleOp::kBackward:
      return label(schedule, "BW", "bw", chunk, microbatch);
    case ScheduleOp::kBackwardInput:
      return label(schedule, "B", "b", chunk, microbatch);
    case ScheduleOp::kBackwardWeight:
      return label(schedule, "W", "w", chunk, microbatch);
    case ScheduleOp::kOverlapped:
      return label(schedule, "F", "f", chunk, microbatch) + "&" +
             label(schedule, "BW", "bw", action.backward_chunk, action.backward_microbatch);
    default:
      return "";
  }
}

}  // namespace

std::string draw_schedule(const Schedule& schedule, const Replay& replay, double seconds_per_column) {
  FIVEFOLD_CHECK(seconds_per_column > 0);
  const auto column = [&](double time_s) { return static_cast<size_t>(std::llround(time_s / seconds_per_column)); };
  const size_t width = column(replay.makespan_s);
  std::string picture;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::string line(width, '.');
    for (size_t position = 0; position < schedule.ranks[rank].size(); ++position) {
      const ScheduleAction& action = schedule.ranks[rank][position];
      if (is_transfer(action.op)) continue;
      const size_t begin = column(replay.actions[rank][position].start_s);
      const size_t length = column(replay.actions[rank][position].end_s) - begin;
      std::string text = label(schedule, action).substr(0, length);
      // The last column stays free, so that neighbours can be told apart.
      if (text.size() + 1 < length) text.append(length - 1 - text.size(), '-');
      if (text.size() < length) text += ' ';
      line.replace(begin, length, text);
    }
    std::string name = "rank " + std::to_string(rank);
    name.resize(std::max<size_t>(name.size(), 7), ' ');
    picture += name + " |" + line + "|\n";
  }
  return picture;
}

}  // namespace fivefold
