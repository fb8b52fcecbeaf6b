// Logs of other frameworks: as what they look like, and as each kind in turn.
#include <cmath>

#include "fuzz/fuzz_target.h"
#include "record/foreign_log.h"
#include "record/log_summary.h"

namespace {

using namespace fivefold;

void check_number(const std::optional<double>& value) {
  FIVEFOLD_CHECK(!value || (std::isfinite(*value) && *value >= 0));
}

void check_log(const Result<ForeignLog>& log) {
  if (!log.ok()) return fuzz::check_error(log.error());
  FIVEFOLD_CHECK(!log->empty());
  for (const LoggedStep& step : log->steps)
    for (const auto& value : {step.seconds, step.tokens_per_s, step.flops_per_s, step.loss, step.grad_norm})
      check_number(value);
  for (const LoggedMemory& figure : log->memory) FIVEFOLD_CHECK(figure.bytes > 0 && figure.rank >= 0);
  for (const OutOfMemory& failure : log->out_of_memory)
    FIVEFOLD_CHECK(failure.requested > 0 && failure.unallocated >= 0 && failure.precision >= 0);
  for (const CardUse& card : log->cards) FIVEFOLD_CHECK(0 <= card.mean_utilization && card.mean_utilization <= 1);
  const LogSummary summary = summarize(*log);
  for (const auto& value : {summary.step_seconds, summary.tokens_per_s, summary.flops_per_s, summary.samples})
    check_number(value);
  FIVEFOLD_CHECK(std::isfinite(summary.spread));
  ForeignLog twice = *log;
  add_log(twice, *log);
  FIVEFOLD_CHECK(twice.peak(LoggedMemoryKind::kAllocated) == log->peak(LoggedMemoryKind::kAllocated));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fivefold::fuzz::as_text(data, size);
  check_log(fivefold::parse_foreign_log(text, "log"));
  for (int kind = 0; kind < fivefold::kNumLogKinds; ++kind)
    check_log(fivefold::parse_foreign_log(text, "log", static_cast<fivefold::LogKind>(kind)));
  return 0;
}
