// A schedule as text: one line per rank, time from left to right. What a line is made of serves other pictures of steps
// too (report/timeline_picture.h). Pure functions, thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "schedule/replay.h"
#include "schedule/schedule.h"

namespace fivefold {

// "F3" is the forward of microbatch 3, "BW3" its backward, "B3" and "W3" the halves, "F5&BW3" both at once; dashes last
// as long as the computation does, dots are waiting. The second chunk of a rank is in small letters ("f3"); of three or
// more chunks each has its number ("F1.3"). Labels longer than their computation are cut.
// REQUIRES: seconds_per_column > 0.
std::string draw_schedule(const Schedule& schedule, const Replay& replay, double seconds_per_column);

// "F3" for "F" and microbatch 3, of the second of two chunks "f3", of three or more chunks "F1.3".
std::string chunk_label(std::string_view capital, int chunks_per_rank, int chunk, int microbatch);

// Writes a computation over columns [begin, end) of `line`: its label, cut where it is longer, dashes, and a blank that
// tells it from its neighbour where there is room. REQUIRES: begin <= end <= line.size().
void draw_span(std::string& line, size_t begin, size_t end, std::string_view label);

// "rank 3  |", wide enough for ranks up to 99 in one column.
std::string line_name(int rank);

}  // namespace fivefold
