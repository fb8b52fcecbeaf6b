// Prints the generated blocks of docs/schedules.md: "== NAME" and then the block. schedules_test.py puts them there.
#include <algorithm>
#include <cstdio>
#include <string>

#include "schedule/generate.h"
#include "schedule/picture.h"
#include "schedule/replay.h"

namespace fivefold {
namespace {

// A rank's layers take one unit for each of F, B and W, whatever the number of chunks.
Replay unit_replay(const Schedule& schedule) {
  const double chunk = 1.0 / schedule.chunks_per_rank;
  return replay(schedule, StageTimes{chunk, chunk, chunk, 3 * chunk}, 0);
}

void print_picture(ScheduleKind kind, int p, int v, int m) {
  const Schedule schedule = *generate(kind, p, v, m);
  std::printf("== %s\n%s", std::string(to_string(kind)).c_str(),
              draw_schedule(schedule, unit_replay(schedule), 1.0 / (3 * v)).c_str());
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// One row: the bubble of the rank that waits most and the most that each rank holds, beside the closed forms.
void print_row(ScheduleKind kind, int v, const std::string& bubble_form, const std::string& memory_form) {
  constexpr int p = 8, m = 32;
  const Schedule schedule = *generate(kind, p, v, m);
  const Replay out = unit_replay(schedule);
  double bubble = 0;
  for (int rank = 0; rank < p; ++rank) bubble = std::max(bubble, out.bubble_s(rank));
  const auto peaks = *check_schedule(schedule);
  const auto held = [&](const LiveChunks& peak) { return number(static_cast<double>(peak.together) / v); };
  std::printf("| %s | %d | %s | %s | %.1f %% | %s | %s | %s |\n", std::string(to_string(kind)).c_str(), v,
              bubble_form.c_str(), number(bubble).c_str(), 100 * bubble / out.makespan_s, memory_form.c_str(),
              held(peaks.front()).c_str(), held(peaks.back()).c_str());
}

void print_table() {
  std::printf("== table\n");
  std::printf("| schedule | v | bubble, form | replayed | of the step | held at most, form | rank 0 | rank 7 |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  print_row(ScheduleKind::kNaive, 1, "672", "1");
  print_row(ScheduleKind::kGPipe, 1, "21", "32");
  print_row(ScheduleKind::k1F1B, 1, "21", "8");
  print_row(ScheduleKind::kInterleaved, 2, "10.5", "11.5");
  print_row(ScheduleKind::kInterleaved, 4, "5.25", "9.75");
  print_row(ScheduleKind::kZb1p, 1, "7", "8");
  print_row(ScheduleKind::kZb2p, 1, "7", "15");
  print_row(ScheduleKind::kZbv, 2, "3.5", "8");
  print_row(ScheduleKind::kVHalf, 2, "", "5");
  print_row(ScheduleKind::kVMin, 2, "", "4");
  print_row(ScheduleKind::kDualPipeV, 2, "7", "8.5");
}

}  // namespace
}  // namespace fivefold

int main() {
  using namespace fivefold;
  print_table();
  print_picture(ScheduleKind::kNaive, 4, 1, 2);
  print_picture(ScheduleKind::kGPipe, 4, 1, 8);
  print_picture(ScheduleKind::k1F1B, 4, 1, 8);
  print_picture(ScheduleKind::kInterleaved, 3, 2, 6);
  print_picture(ScheduleKind::kZb1p, 4, 1, 8);
  print_picture(ScheduleKind::kZb2p, 4, 1, 8);
  print_picture(ScheduleKind::kZbv, 3, 2, 6);
  print_picture(ScheduleKind::kVHalf, 3, 2, 6);
  print_picture(ScheduleKind::kVMin, 3, 2, 6);
  print_picture(ScheduleKind::kDualPipeV, 3, 2, 6);
}
