#include "cli/planned_refusal.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/table.h"
#include "base/text.h"
#include "cli/output.h"
#include "cli/plan_json.h"

namespace fivefold {
namespace {

std::string difference(int64_t bytes) {
  if (bytes == 0) return "0 B";
  return (bytes > 0 ? "+" : "-") + format_bytes(std::abs(bytes));
}

}  // namespace

PlannedRefusal::PlannedRefusal(const MemoryRefusal& refusal, const RunPlan& plan, int64_t scratch)
    : refusal_(refusal), plan_(plan), planned_(plan.ledger_of(refusal.rank).persistent) {
  if (refusal.instruction)
    planned_ = predict_memory_at(plan.model, plan.inventory, plan.config, refusal.rank, *refusal.instruction).most;
  planned_[Account::kWorkspace] += scratch;
}

int64_t PlannedRefusal::beyond_plan() const {
  return std::max<int64_t>(0, refusal_.live.total() + refusal_.bytes - planned_.total());
}

std::string PlannedRefusal::moment() const {
  if (refusal_.step == 0) return "while its buffers were made";
  if (!refusal_.instruction) return fmt::format("outside of a step, before step {}", refusal_.step);
  const Instruction& instruction = plan_.program_of(refusal_.rank).instructions[*refusal_.instruction];
  return fmt::format("in step {}: {}", refusal_.step, to_string(instruction, plan_.inventory));
}

Error PlannedRefusal::error() const {
  return {"limits.memory",
          fmt::format("rank {} is out of memory {}: {} of {} on top of {} are more than {}", refusal_.rank, moment(),
                      format_bytes(refusal_.bytes), to_string(refusal_.account), format_bytes(refusal_.live.total()),
                      format_bytes(refusal_.limit)),
          fmt::format("the run needs {} more than planned; take a remedy below", format_bytes(beyond_plan()))};
}

std::string PlannedRefusal::text() const {
  Table table({"account", "live", "asked for", "planned", "beyond the plan"});
  const auto asked = [&](Account account) { return account == refusal_.account ? refusal_.bytes : 0; };
  for (int i = 0; i < kNumAccounts; ++i) {
    const auto account = static_cast<Account>(i);
    const int64_t live = refusal_.live[account], planned = planned_[account];
    if (live == 0 && planned == 0 && asked(account) == 0) continue;
    table.add_row({std::string(to_string(account)), format_bytes(live), format_bytes(asked(account)),
                   format_bytes(planned), difference(live + asked(account) - planned)});
  }
  table.add_rule();
  table.add_row({"sum", format_bytes(refusal_.live.total()), format_bytes(refusal_.bytes),
                 format_bytes(planned_.total()),
                 difference(refusal_.live.total() + refusal_.bytes - planned_.total())});
  return painted(Paint::kHeading, fmt::format("Rank {}, {}", refusal_.rank, moment())) + "\n" + table.to_string(2) +
         "\n";
}

nlohmann::ordered_json PlannedRefusal::json() const {
  nlohmann::ordered_json json{{"rank", refusal_.rank},   {"step", refusal_.step},
                              {"moment", moment()},      {"account", to_string(refusal_.account)},
                              {"bytes", refusal_.bytes}, {"limit", refusal_.limit}};
  json["live"] = accounts_json(refusal_.live);
  json["planned"] = accounts_json(planned_);
  json["beyond_plan"] = beyond_plan();
  return json;
}

}  // namespace fivefold
