// PlannedRefusal: an allocation that limits.memory refused, held against what the plan has for that moment: by account,
// and by how much the run held more than planned. Immutable.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"
#include "engine/engine_api.h"
#include "reconcile/run_plan.h"

namespace fivefold {

class PlannedRefusal {
 public:
  // `scratch`: what kernels may take (outside_tensors()), planned for every moment. REQUIRES: both outlive it.
  PlannedRefusal(const MemoryRefusal& refusal, const RunPlan& plan, int64_t scratch);

  // Bytes live and asked for above the most that is planned for the moment; at least 0.
  int64_t beyond_plan() const;
  // Rank, step, instruction, what was asked for.
  Error error() const;
  // A row for each account: live, asked for, planned.
  std::string text() const;
  nlohmann::ordered_json json() const;

 private:
  std::string moment() const;

  const MemoryRefusal& refusal_;
  const RunPlan& plan_;
  AccountBytes planned_;  // while the instruction runs; outside of a step: between steps
};

}  // namespace fivefold
