// LogSummary: the pace of a run from its log: medians over steps, without those that warm up. Pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "record/foreign_log.h"

namespace fivefold {

// Steps at the start of a session that compile, tune kernels and fill caches; with a logging interval the whole first
// line, which covers them.
inline constexpr int64_t kWarmupSteps = 3;

struct LogSummary {
  std::optional<double> step_seconds;          // of a step
  std::optional<double> tokens_per_s;          // of one GPU, where the log says it
  std::optional<double> flops_per_s;           // of one GPU
  std::optional<double> samples;               // of a step, over all ranks
  std::optional<double> last_loss, grad_norm;  // median
  double spread = 0;                           // of the step time: (90th percentile - median) / median
  int64_t lines = 0, left_out = 0;             // used; of warm-up
  int64_t sessions = 0;
  std::vector<std::string> notes;  // where the figures come from and what was left out
};

LogSummary summarize(const ForeignLog& log);

}  // namespace fivefold
