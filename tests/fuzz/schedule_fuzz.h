// What holds for a schedule that a reader has accepted, in either form.
#pragma once

#include <algorithm>

#include "fuzz/fuzz_target.h"
#include "schedule/replay.h"
#include "schedule/schedule_file.h"

namespace fivefold::fuzz {

// It passes the check, comes to its end in a replay, holds at each moment no more than the check says, and is the same
// when it is written and read again.
inline void check_accepted(const Schedule& schedule) {
  const auto peaks = check_schedule(schedule);
  FIVEFOLD_CHECK(peaks.ok());
  const Replay out = replay(schedule, StageTimes{}, 0.5);
  for (int rank = 0; rank < schedule.num_stages; ++rank) {
    FIVEFOLD_CHECK(out.bubble_s(rank) >= 0 && out.ranks[static_cast<size_t>(rank)].idle_s() >= 0);
    int most = 0;
    for (const LivePoint& point : live_over_time(schedule, out, rank)) most = std::max(most, point.activations);
    FIVEFOLD_CHECK(most == (*peaks)[static_cast<size_t>(rank)].activations);
  }
  const auto text = read_schedule_text(write_schedule_text(schedule), "again");
  FIVEFOLD_CHECK(text.ok() && *text == schedule);
  const auto csv = read_schedule_csv(write_schedule_csv(schedule, CsvContent::kComputations), "again");
  FIVEFOLD_CHECK(csv.ok() && csv->num_virtual_stages() == schedule.num_virtual_stages());
}

}  // namespace fivefold::fuzz
