#include <algorithm>
#include <cstdlib>

#include "base/text.h"
#include "base/units.h"
#include "reconcile/byte_sizes.h"
#include "reconcile/sections.h"

namespace fivefold {
namespace {

// Allowed beside the sum of the plan: scratch of the libraries, which every thread has its own of.
constexpr double kTotalShare = 0.01;
constexpr int64_t kScratchPerThread = 4 * kMiB;
constexpr double kRssShare = 0.05;

bool bounded_only(Account account) { return account == Account::kWorkspace || account == Account::kOther; }

double total_allowance(const RunPlan& plan, int rank) {
  return kTotalShare * static_cast<double>(plan.ledger_of(rank).peak_total) +
         static_cast<double>(kScratchPerThread * plan.threads);
}

// When the peak was reached: every step, or some and what was special about the first of them.
std::string when(const RecordedSession& session, const PeakMoment& peak) {
  if (peak.num_steps_at == peak.num_steps) return "in every step";
  std::string text = "reached in " + std::to_string(peak.num_steps_at) + " of " + std::to_string(peak.num_steps) +
                     " steps, first in step " + std::to_string(peak.step);
  const std::string special = circumstance(session, peak.step);
  return special.empty() ? text : text + " (" + special + ")";
}

// Bytes by which what an account holds between steps grew from one step to the next, when it did so every time.
int64_t growth_per_step(const RecordedSession& session, Account account) {
  int64_t least = 0;
  for (size_t i = 1; i < session.steps.size(); ++i) {
    const int64_t grown = session.steps[i].live[account] - session.steps[i - 1].live[account];
    if (grown <= 0) return 0;
    least = i == 1 ? grown : std::min(least, grown);
  }
  return session.steps.size() >= 3 ? least : 0;
}

std::string account_cause(const RecordedSession& session, Account account, const PeakMoment& peak, int64_t difference,
                          const ByteSizes& sizes) {
  if (difference == 0) return "";
  const int64_t growth = growth_per_step(session, account);
  if (growth > 0) return "grows by at least " + format_bytes(growth) + " a step: buffers are not freed";
  const std::string known = sizes.name(difference);
  std::string text;
  if (!known.empty()) {
    text = (difference > 0 ? "more by the size of " : "less by the size of ") + known + ", ";
  } else if (account == Account::kWorkspace) {
    text = "scratch that kernels and libraries took without naming it, ";
  } else if (difference < 0 && peak.bytes == 0) {
    return "planned, but the run held none";
  }
  return text + when(session, peak);
}

// The accounts whose bytes at the moment of the peak make up the difference, largest first.
std::string total_cause(const Ledger& ledger, const RecordedSession& session, const PeakMoment& peak) {
  const auto step = std::find_if(session.steps.begin(), session.steps.end(),
                                 [&](const StepRecord& line) { return line.step == peak.step; });
  std::vector<std::pair<int64_t, Account>> parts;
  for (int i = 0; i < kNumAccounts; ++i) {
    const auto account = static_cast<Account>(i);
    const int64_t difference = step->at_peak[account] - ledger.at_peak[account];
    if (difference != 0) parts.emplace_back(difference, account);
  }
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return std::abs(a.first) > std::abs(b.first); });
  std::vector<std::string> texts;
  for (const auto& [difference, account] : parts)
    texts.push_back(std::string(to_string(account)) + " " +
                    format_difference(static_cast<double>(difference), RowUnit::kBytes));
  return texts.empty() ? "" : "at the peak: " + join(texts, ", ") + "; " + when(session, peak);
}

ReconcileRow process_row(const PlannedRun& run, const ProcessRecord& process, int rank) {
  double planned = 0;
  for (int i = rank; i < rank + process.ranks; ++i) planned += static_cast<double>(run.plan.ledger_of(i).peak_total);
  const double libraries = static_cast<double>(run.plan.library_bytes);
  const double predicted = planned + libraries;
  ReconcileRow row{.section = RowSection::kMemory,
                   .quantity = "memory.rss_above_idle",
                   .rank = rank,
                   .unit = RowUnit::kBytes,
                   .predicted = predicted,
                   .measured = static_cast<double>(process.rss_peak - process.rss_idle),
                   .bound = {},
                   .cause = ""};
  // Without the libraries the prediction is known to be too low.
  if (libraries > 0) row.bound = kRssShare * predicted;
  int64_t counted = 0;
  for (int i = rank; i < rank + process.ranks && i < static_cast<int>(run.record.ranks.size()); ++i)
    counted += peak_total_of(run.record.ranks[static_cast<size_t>(i)].sessions.back()).bytes;
  const double above_plan = static_cast<double>(counted) - planned;
  const double before_model = static_cast<double>(process.rss_before_model - process.rss_idle);
  const double rest = row.measured - static_cast<double>(counted) - before_model - libraries;
  const std::string beyond =
      libraries > 0 ? "beyond " + format_bytes(run.plan.library_bytes) + " of libraries (allocator's reserve, stacks, "
                    : "not counted (libraries, which calibrate was not asked to measure, allocator's reserve, stacks, ";
  row.cause = "counted beyond the plan " + format_difference(above_plan, RowUnit::kBytes) +
              ", resident before the model was made " + format_difference(before_model, RowUnit::kBytes) + ", " +
              beyond + "file pages; negative: never touched) " + format_difference(rest, RowUnit::kBytes);
  return row;
}

}  // namespace

std::vector<ReconcileRow> memory_rows(const PlannedRun& run) {
  std::vector<ReconcileRow> rows, processes;
  const ByteSizes sizes(run.plan);
  const auto row = [](std::string quantity, int rank, int64_t predicted, int64_t measured) {
    ReconcileRow row;
    row.quantity = std::move(quantity);
    row.rank = rank;
    row.predicted = static_cast<double>(predicted);
    row.measured = static_cast<double>(measured);
    return row;
  };
  for (const RankRecord& rank : run.record.ranks) {
    const RecordedSession& session = rank.sessions.back();
    for (int i = 0; i < kNumAccounts; ++i) {
      const auto account = static_cast<Account>(i);
      const PeakMoment peak = peak_of(session, account);
      const int64_t predicted = run.plan.ledger_of(rank.rank).peak[account];
      if (predicted == 0 && peak.bytes == 0) continue;
      rows.push_back(row("memory.peak." + std::string(to_string(account)), rank.rank, predicted, peak.bytes));
      rows.back().bound = bounded_only(account) ? total_allowance(run.plan, rank.rank) : 0;
      rows.back().side = bounded_only(account) ? BoundSide::kAbove : BoundSide::kBoth;
      rows.back().cause = account_cause(session, account, peak, peak.bytes - predicted, sizes);
    }
    const PeakMoment total = peak_total_of(session);
    rows.push_back(row("memory.peak_total", rank.rank, run.plan.ledger_of(rank.rank).peak_total, total.bytes));
    rows.back().bound = total_allowance(run.plan, rank.rank);
    rows.back().cause = total_cause(run.plan.ledger_of(rank.rank), session, total);
    if (!session.processes.empty()) processes.push_back(process_row(run, session.processes.back(), rank.rank));
  }
  rows.insert(rows.end(), processes.begin(), processes.end());
  return rows;
}

}  // namespace fivefold
