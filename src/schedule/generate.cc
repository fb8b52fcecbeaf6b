#include "schedule/generate.h"

#include <algorithm>

#include "schedule/families.h"
#include "schedule/transfers.h"

namespace fivefold {
namespace {

Error refusal(ScheduleKind kind, const std::string& problem, const std::string& hint) {
  return {"schedule " + std::string(to_string(kind)), problem, hint};
}

Status check_domain(ScheduleKind kind, int p, int v, int m) {
  if (p < 1) return refusal(kind, std::to_string(p) + " ranks", "use 1 or more");
  if (v < 1) return refusal(kind, std::to_string(v) + " chunks a rank", "use 1 or more");
  if (m < 1) return refusal(kind, std::to_string(m) + " microbatches", "use 1 or more");
  switch (kind) {
    case ScheduleKind::kNaive:
    case ScheduleKind::kGPipe:
    case ScheduleKind::k1F1B:
    case ScheduleKind::kZb1p:
    case ScheduleKind::kZb2p:
      if (v != 1) return refusal(kind, "has one chunk a rank, not " + std::to_string(v), "use 1, or interleaved");
      return Ok{};
    case ScheduleKind::kInterleaved:
      if (v == 1) return refusal(kind, "needs several chunks a rank, not 1", "use 2, or 1f1b");
      if (m % p != 0) {
        const int below = m / p * p, above = below + p;
        return refusal(kind,
                       "takes the microbatches in rounds of p: " + std::to_string(m) + " is not a multiple of " +
                           std::to_string(p),
                       below == 0 ? "use " + std::to_string(above)
                                  : "use " + std::to_string(below) + " or " + std::to_string(above));
      }
      return Ok{};
    case ScheduleKind::kZbv:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
    case ScheduleKind::kDualPipeV:
      if (v != 2) return refusal(kind, "has two chunks a rank, not " + std::to_string(v), "use 2");
      if (kind == ScheduleKind::kDualPipeV && m < 2 * p)
        return refusal(
            kind, "needs at least 2 p = " + std::to_string(2 * p) + " microbatches, there are " + std::to_string(m),
            "use " + std::to_string(2 * p));
      return Ok{};
    case ScheduleKind::kFile:
      return refusal(kind, "is read, not generated", "use read_schedule_source()");
  }
  FIVEFOLD_CHECK(false);
}

Schedule computations(ScheduleKind kind, int p, int v, int m) {
  switch (kind) {
    case ScheduleKind::kNaive:
      return naive_computations(p, m);
    case ScheduleKind::kGPipe:
      return gpipe_computations(p, m);
    case ScheduleKind::k1F1B:
      return one_f_one_b_computations(p, m);
    case ScheduleKind::kInterleaved:
      return interleaved_computations(p, v, m);
    case ScheduleKind::kZb1p:
      return zb1p_computations(p, m);
    case ScheduleKind::kZb2p:
      return zb2p_computations(p, m);
    case ScheduleKind::kZbv:
      return zbv_computations(p, m);
    case ScheduleKind::kVHalf:
      return v_half_computations(p, m);
    case ScheduleKind::kVMin:
      return v_min_computations(p, m);
    case ScheduleKind::kDualPipeV:
      return dualpipev_computations(p, m);
    case ScheduleKind::kFile:
      break;  // refused by check_domain
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace

Schedule empty_schedule(int p, int v, int m, Placement placement) {
  Schedule schedule;
  schedule.num_stages = p;
  schedule.chunks_per_rank = v;
  schedule.num_microbatches = m;
  schedule.ranks.resize(static_cast<size_t>(p));
  // On one rank both placements are the same one.
  schedule.placement = p == 1 ? Placement::kLoop : placement;
  return schedule;
}

Result<Schedule> generate_computations(ScheduleKind kind, int p, int v, int m) {
  FIVEFOLD_TRY(check_domain(kind, p, v, m));
  return computations(kind, p, v, m);
}

Result<Schedule> generate(ScheduleKind kind, int p, int v, int m) {
  FIVEFOLD_ASSIGN(const Schedule without, generate_computations(kind, p, v, m));
  return add_transfers(without).value();
}

}  // namespace fivefold
