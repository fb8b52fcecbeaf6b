#include "planner/published/score.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/check.h"

namespace fivefold {
namespace {

double share(int64_t part, int64_t of) { return of > 0 ? static_cast<double>(part) / static_cast<double>(of) : 0.0; }

// 1 for the smallest; equal values get the mean of the ranks that they take up.
std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return values[i]; });
  std::vector<double> rank(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double mean = (static_cast<double>(begin + end) + 1) / 2;
    for (; begin < end; ++begin) rank[order[begin]] = mean;
  }
  return rank;
}

// Pearson's correlation; 0 when one side does not vary, which orders nothing.
double correlation(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  const double mean_x = std::reduce(x.begin(), x.end()) / n, mean_y = std::reduce(y.begin(), y.end()) / n;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean_x) * (y[i] - mean_y);
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0.0;
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  FIVEFOLD_CHECK(!values.empty());
  std::ranges::sort(values);
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], at - static_cast<double>(below));
}

ErrorScore error_score(const std::vector<double>& errors_pct) {
  if (errors_pct.empty()) return {};
  std::vector<double> sizes;
  for (const double error : errors_pct) sizes.push_back(std::abs(error));
  return {.n = static_cast<int>(errors_pct.size()),
          .median_abs_pct = quantile(sizes, 0.5),
          .p90_abs_pct = quantile(sizes, 0.9),
          .bias_pct = std::accumulate(errors_pct.begin(), errors_pct.end(), 0.0) / static_cast<double>(sizes.size())};
}

FitScore fit_score(const std::vector<Outcome>& outcomes) {
  const auto count = [&](auto&& which) { return std::ranges::count_if(outcomes, which); };
  const auto n = static_cast<int64_t>(outcomes.size());
  const int64_t failed = count([](const Outcome& o) { return !o.ran; });
  const int64_t false_fits = count([](const Outcome& o) { return o.predicted_fits && !o.ran; });
  const int64_t false_ooms = count([](const Outcome& o) { return !o.predicted_fits && o.ran; });
  return {.n = static_cast<int>(n),
          .num_failed = static_cast<int>(failed),
          .accuracy = share(n - false_fits - false_ooms, n),
          .false_fit = share(false_fits, failed),
          .false_oom = share(false_ooms, n - failed)};
}

OrderScore order_score(const std::vector<OrderedRun>& runs) {
  std::map<std::string, std::vector<const OrderedRun*>> groups;
  for (const OrderedRun& run : runs) groups[run.group].push_back(&run);
  OrderScore score;
  std::vector<double> regrets;
  for (const auto& [name, members] : groups) {
    if (members.size() < kSmallestGroup) continue;
    std::vector<double> predicted, measured;
    for (const OrderedRun* run : members) {
      predicted.push_back(run->predicted);
      measured.push_back(run->measured);
    }
    score.rank_correlation += correlation(ranks(predicted), ranks(measured));
    const auto chosen = std::ranges::max_element(predicted) - predicted.begin();
    const double best = std::ranges::max(measured);
    regrets.push_back(100 * (1 - measured[static_cast<size_t>(chosen)] / best));
  }
  if (regrets.empty()) return score;
  score.num_groups = static_cast<int>(regrets.size());
  score.rank_correlation /= score.num_groups;
  score.regret_median_pct = quantile(regrets, 0.5);
  score.regret_p90_pct = quantile(regrets, 0.9);
  return score;
}

}  // namespace fivefold
