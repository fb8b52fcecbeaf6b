// Rows of nanotron's benchmark: one log line of rank 0, which is on the first stage.
#include "planner/published/published_frameworks.h"

namespace fivefold {

Status read_nanotron_row(const PublishedRun& row, FrameworkRun& run) {
  run.reported = ReportedRank::kFirst;
  run.sp = run.tp > 1 && (run.sp || row.text("sp").find("REDUCE_SCATTER") != std::string::npos);
  return Ok{};
}

}  // namespace fivefold
