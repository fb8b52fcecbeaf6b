// Scores of predictions against measurements: how far off they are, whether they put runs in the right order, and
// whether "fits" is said of what ran. How each is counted: docs/formats/published-runs.md. Pure functions, thread-safe.
#pragma once

#include <string>
#include <vector>

namespace fivefold {

// Of errors in percent: 100 (predicted / measured - 1).
struct ErrorScore {
  int n = 0;
  double median_abs_pct = 0, p90_abs_pct = 0;  // of their absolute values
  double bias_pct = 0;                         // mean with sign: below 0 when predictions are low
};
ErrorScore error_score(const std::vector<double>& errors_pct);

// Value below which the share `q` (0 to 1) of the values lies, interpolated linearly between the two nearest.
// REQUIRES: a value.
double quantile(std::vector<double> values, double q);

// What was said of runs whose outcome is known.
struct Outcome {
  bool predicted_fits = false, ran = false;
};
// Shares from 0 to 1. `false_fit`: of the runs that ran out of memory, those said to fit; `false_oom`: of the runs that
// ran, those said not to. 0 where there is no such run.
struct FitScore {
  int n = 0, num_failed = 0;
  double accuracy = 0, false_fit = 0, false_oom = 0;
};
FitScore fit_score(const std::vector<Outcome>& outcomes);

// Whether predicted throughput puts alike runs in the order in which they were measured.
struct OrderedRun {
  std::string group;  // runs that compete: one model on one number of GPUs
  double predicted = 0, measured = 0;
};
// Means over the groups that have at least kSmallestGroup runs. Regret: throughput that is lost by taking the run
// predicted best instead of the one measured best, in percent of the latter.
inline constexpr int kSmallestGroup = 5;
struct OrderScore {
  int num_groups = 0;
  double rank_correlation = 0;  // Spearman's, ties with the mean of their ranks
  double regret_median_pct = 0, regret_p90_pct = 0;
};
OrderScore order_score(const std::vector<OrderedRun>& runs);

}  // namespace fivefold
