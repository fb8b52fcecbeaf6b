#include "schedule/picture.h"

#include <algorithm>
#include <cctype>
#include <cmath>

namespace fivefold {
namespace {

std::string label(const Schedule& schedule, const ScheduleAction& action) {
  const auto of = [&](std::string_view capital, int chunk, int microbatch) {
    return chunk_label(capital, schedule.chunks_per_rank, chunk, microbatch);
  };
  switch (action.op) {
    case ScheduleOp::kForward:
      return of("F", action.chunk, action.microbatch);
    case ScheduleOp::kBackward:
      return of("BW", action.chunk, action.microbatch);
    case ScheduleOp::kBackwardInput:
      return of("B", action.chunk, action.microbatch);
    case ScheduleOp::kBackwardWeight:
      return of("W", action.chunk, action.microbatch);
    case ScheduleOp::kOverlapped:
      return of("F", action.chunk, action.microbatch) + "&" +
             of("BW", action.backward_chunk, action.backward_microbatch);
    default:
      return "";
  }
}

}  // namespace

std::string chunk_label(std::string_view capital, int chunks_per_rank, int chunk, int microbatch) {
  std::string text(capital);
  if (chunks_per_rank > 2) return text + std::to_string(chunk) + "." + std::to_string(microbatch);
  if (chunk == 1)
    for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return text + std::to_string(microbatch);
}

void draw_span(std::string& line, size_t begin, size_t end, std::string_view label) {
  FIVEFOLD_CHECK(begin <= end && end <= line.size());
  const size_t length = end - begin;
  std::string text(label.substr(0, length));
  if (text.size() + 1 < length) text.append(length - 1 - text.size(), '-');
  if (text.size() < length) text += ' ';
  line.replace(begin, length, text);
}

std::string line_name(int rank) {
  std::string name = "rank " + std::to_string(rank);
  name.resize(std::max<size_t>(name.size(), 7), ' ');
  return name + " |";
}

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
      draw_span(line, begin, column(replay.actions[rank][position].end_s), label(schedule, action));
    }
    picture += line_name(static_cast<int>(rank)) + line + "|\n";
  }
  return picture;
}

}  // namespace fivefold
