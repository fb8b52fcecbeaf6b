// A step as text: a line per rank, time from left to right, as the pictures of schedule/picture.h: planned, replayed or
// measured. Pure functions, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "planner/step_replay.h"
#include "reconcile/reconcile.h"
#include "spec/pipeline_stages.h"

namespace fivefold {

// One line. Entries that are `communication` are left out of it.
struct TimelineLine {
  std::string name;                    // "rank 3"
  std::vector<TimelineEntry> entries;  // in order
  std::vector<StageUnits> chunks;      // of the rank
  std::string remark;                  // after the line: "bubble 12.3 %"
  bool network = false;                // instead, those that are: what goes over the links
};

struct TimelineBlock {
  std::string heading;  // empty: none
  std::vector<TimelineLine> lines;
};

// A replay's lines, with the share of the step in which each rank waits; without a pipeline a line for the network too.
TimelineBlock replay_block(std::string heading, const StepReplay& replay, const ModelSpec& model,
                           const ResolvedConfig& config);

// The step of the last session that is the median of the steady ones by its slowest rank, every rank of the record on a
// line, in wall time from the moment when the first rank began. No lines where the record has no times of a steady step
// on every rank, or another program than the plan.
TimelineBlock measured_block(const PlannedRun& run);

// All blocks on one scale, in lines of at most `width` columns, or of what names, remarks and a line of 20 need; then
// the scale and a legend of what occurs. The forward of microbatch 3 is "F3", its backward "BW3", or "B3" and "W3"
// (small letters and "F1.3" as in schedule/picture.h), recomputation within; the loss is "L", the optimizer "O",
// waiting for a link "~", other waiting dots. Numbers that have no room are left out, and what is shorter than half a
// column.
std::string draw_timelines(const std::vector<TimelineBlock>& blocks, int width);

}  // namespace fivefold
