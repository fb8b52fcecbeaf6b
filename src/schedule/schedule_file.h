// Schedules in files: fivefold's own text, one readable line per rank, and the CSV of PyTorch's pipeline schedules,
// which torchtitan reads and writes. Both forms: docs/formats/schedule.md. Pure functions, thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "schedule/schedule.h"

namespace fivefold {

// The text of a schedule. read_schedule_text() of it gives an equal schedule.
std::string write_schedule_text(const Schedule& schedule);

// A checked schedule. A file of computations only gets its transfers by add_transfers(). `name` is the file's, for
// errors, which give line and column, or the rank, position and action that check_schedule() refuses.
Result<Schedule> read_schedule_text(std::string_view text, const std::string& name);

// What a CSV file holds: PyTorch's formats "compute_only" and "compute_comms".
enum class CsvContent { kComputations, kAll };

// The CSV of a schedule. It has no place for which transfers are joined: each one stands alone when it is read again.
std::string write_schedule_csv(const Schedule& schedule, CsvContent content);

// As read_schedule_text(); errors give line and cell. Number of ranks, stages and microbatches and the placement follow
// from the cells. Cells that gather, free and reduce parameters (UNSHARD, RESHARD, REDUCE_GRAD) are read over: that is
// the lowering's to decide.
Result<Schedule> read_schedule_csv(std::string_view text, const std::string& name);

}  // namespace fivefold
