#include "planner/published/score.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fivefold {
namespace {

TEST(Score, QuantilesLieBetweenTheNearestValues) {
  // 0, 10, 20, 30, 40: 0.9 lies at place 3.6, so 30 + 0.6 x 10.
  EXPECT_DOUBLE_EQ(quantile({30, 0, 40, 10, 20}, 0.9), 36);
  EXPECT_DOUBLE_EQ(quantile({1, 2, 3, 4}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({7}, 0.9), 7);
  EXPECT_DOUBLE_EQ(quantile({7, 8}, 1.0), 8);
}

TEST(Score, ErrorsAreTakenWithoutSignForSizeAndWithItForBias) {
  // Sizes 1, 2, 3, 10: median 2.5, p90 at place 2.7: 3 + 0.7 x 7. Bias (-10 + 1 + 2 - 3) / 4.
  const ErrorScore score = error_score({-10, 1, 2, -3});
  EXPECT_EQ(score.n, 4);
  EXPECT_DOUBLE_EQ(score.median_abs_pct, 2.5);
  EXPECT_DOUBLE_EQ(score.p90_abs_pct, 7.9);
  EXPECT_DOUBLE_EQ(score.bias_pct, -2.5);
  EXPECT_EQ(error_score({}).n, 0);
}

TEST(Score, FitSharesAreOfTheRunsThatTheyAreAbout) {
  // 8 runs that ran, 2 of them said not to fit; 4 that failed, 1 of them said to fit.
  std::vector<Outcome> outcomes(6, {.predicted_fits = true, .ran = true});
  outcomes.insert(outcomes.end(), 2, {.predicted_fits = false, .ran = true});
  outcomes.insert(outcomes.end(), 3, {.predicted_fits = false, .ran = false});
  outcomes.push_back({.predicted_fits = true, .ran = false});
  const FitScore score = fit_score(outcomes);
  EXPECT_EQ(score.n, 12);
  EXPECT_EQ(score.num_failed, 4);
  EXPECT_DOUBLE_EQ(score.accuracy, 0.75);
  EXPECT_DOUBLE_EQ(score.false_fit, 0.25);
  EXPECT_DOUBLE_EQ(score.false_oom, 0.25);
}

TEST(Score, FitWithoutAFailureHasNoFalseFit) {
  const FitScore score = fit_score({{.predicted_fits = true, .ran = true}});
  EXPECT_DOUBLE_EQ(score.accuracy, 1);
  EXPECT_DOUBLE_EQ(score.false_fit, 0);
  EXPECT_EQ(fit_score({}).n, 0);
}

std::vector<OrderedRun> group(const std::string& name, const std::vector<double>& predicted,
                              const std::vector<double>& measured) {
  std::vector<OrderedRun> runs;
  for (size_t i = 0; i < predicted.size(); ++i)
    runs.push_back({.group = name, .predicted = predicted[i], .measured = measured[i]});
  return runs;
}

TEST(Score, OrderAndRegretOfOneGroup) {
  // Ranks 1 2 3 4 5 against 2 1 3 4 5: Spearman 1 - 6 x (1 + 1) / (5 x 24) = 0.9. The best is found.
  const OrderScore found = order_score(group("7B on 8", {10, 20, 30, 40, 50}, {200, 100, 300, 400, 500}));
  EXPECT_EQ(found.num_groups, 1);
  EXPECT_DOUBLE_EQ(found.rank_correlation, 0.9);
  EXPECT_DOUBLE_EQ(found.regret_p90_pct, 0);
  // The run predicted best was measured at 400 of 500: a fifth is lost.
  const OrderScore missed = order_score(group("7B on 8", {10, 20, 30, 50, 40}, {100, 200, 300, 400, 500}));
  EXPECT_DOUBLE_EQ(missed.rank_correlation, 0.9);
  EXPECT_NEAR(missed.regret_median_pct, 20, 1e-12);
}

TEST(Score, OrderIsMeanOverGroupsAndSmallGroupsAreLeftOut) {
  std::vector<OrderedRun> runs = group("a", {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5});
  for (const OrderedRun& run : group("b", {1, 2, 3, 4, 5}, {5, 4, 3, 2, 1})) runs.push_back(run);
  for (const OrderedRun& run : group("four are too few", {1, 2, 3, 4}, {4, 3, 2, 1})) runs.push_back(run);
  const OrderScore score = order_score(runs);
  EXPECT_EQ(score.num_groups, 2);
  EXPECT_DOUBLE_EQ(score.rank_correlation, 0);
  // Regrets 0 and 80 %: median 40, p90 72.
  EXPECT_NEAR(score.regret_median_pct, 40, 1e-12);
  EXPECT_NEAR(score.regret_p90_pct, 72, 1e-12);
}

TEST(Score, TiesShareTheirRank) {
  // Predicted ranks 1.5 1.5 3 4 5, measured 1..5: covariance 9.5, variances 9.5 and 10.
  const OrderScore score = order_score(group("a", {1, 1, 3, 4, 5}, {1, 2, 3, 4, 5}));
  EXPECT_NEAR(score.rank_correlation, 9.5 / std::sqrt(9.5 * 10), 1e-12);
}

TEST(Score, OnePredictionForAllOrdersNothing) {
  EXPECT_DOUBLE_EQ(order_score(group("a", {1, 1, 1, 1, 1}, {1, 2, 3, 4, 5})).rank_correlation, 0);
}

}  // namespace
}  // namespace fivefold
