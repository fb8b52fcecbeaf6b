#include "engine/generate/token_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace fivefold {
namespace {

// Probabilities 0.4, 0.3, 0.2, 0.1 of ids 3, 1, 0, 2.
const std::vector<float> kLogits = {std::log(0.2f), std::log(0.3f), std::log(0.1f), std::log(0.4f)};

std::vector<double> shares(const TokenSampling& sampling, int draws) {
  std::vector<double> counts(kLogits.size(), 0);
  for (int i = 0; i < draws; ++i)
    counts[static_cast<size_t>(choose_token(kLogits, sampling, static_cast<uint64_t>(i)))] += 1.0 / draws;
  return counts;
}

TEST(TokenChoice, TemperatureZeroIsTheLargest) {
  EXPECT_EQ(choose_token(kLogits, {}, 0), 3);
  const std::vector<float> ties = {-1, 2, -1, 2};
  EXPECT_EQ(choose_token(ties, {}, 7), 1) << "of equal logits the lowest id";
}

// 40,000 draws: the standard deviation of a share is at most sqrt(0.25 / 40000) = 0.0025; four of them.
TEST(TokenChoice, DrawsFollowTheProbabilities) {
  const std::vector<double> plain = shares({.temperature = 1, .seed = 5}, 40000);
  const double expected[] = {0.2, 0.3, 0.1, 0.4};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(plain[i], expected[i], 0.01) << i;
  // Temperature 1/2 squares them: 0.04, 0.09, 0.01, 0.16 of 0.30.
  const std::vector<double> sharper = shares({.temperature = 0.5, .seed = 5}, 40000);
  const double squared[] = {0.04 / 0.3, 0.09 / 0.3, 0.01 / 0.3, 0.16 / 0.3};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(sharper[i], squared[i], 0.01) << i;
}

TEST(TokenChoice, TopKAndTopPCutTheTail) {
  // Two largest: 0.4 and 0.3 of 0.7.
  const std::vector<double> two = shares({.temperature = 1, .top_k = 2, .seed = 1}, 40000);
  EXPECT_EQ(two[0] + two[2], 0);
  EXPECT_NEAR(two[3], 0.4 / 0.7, 0.01);
  // 0.4 + 0.3 < 0.75 <= 0.4 + 0.3 + 0.2: three stay.
  const std::vector<double> three = shares({.temperature = 1, .top_p = 0.75, .seed = 1}, 40000);
  EXPECT_EQ(three[2], 0);
  EXPECT_NEAR(three[0], 0.2 / 0.9, 0.01);
  // At least one stays, and a k beyond the vocabulary is all of it.
  EXPECT_NEAR(shares({.temperature = 1, .top_p = 1e-9, .seed = 1}, 100)[3], 1, 1e-9);
  EXPECT_GT(shares({.temperature = 1, .top_k = 99, .seed = 1}, 1000)[2], 0);
  // Of the two largest, those that have half of their probability: 0.4 / 0.7 is more than that.
  EXPECT_NEAR(shares({.temperature = 1, .top_k = 2, .top_p = 0.5, .seed = 1}, 1000)[3], 1, 1e-9);
}

TEST(TokenChoice, SeedAndNumberSayWhichDraw) {
  std::vector<int32_t> one, again, other;
  for (uint64_t i = 0; i < 64; ++i) {
    one.push_back(choose_token(kLogits, {.temperature = 1, .seed = 1}, i));
    again.push_back(choose_token(kLogits, {.temperature = 1, .seed = 1}, i));
    other.push_back(choose_token(kLogits, {.temperature = 1, .seed = 2}, i));
  }
  EXPECT_EQ(one, again);
  EXPECT_NE(one, other);
}

TEST(TokenChoice, RefusesWhatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(choose_token(std::vector<float>{-inf, 1, 0}, {}, 0), 1) << "minus infinity is a token that cannot come";
  EXPECT_THROW(choose_token(std::vector<float>{0, nan, 1}, {}, 0), std::runtime_error);
  EXPECT_THROW(choose_token(std::vector<float>{0, inf, 1}, {}, 0), std::runtime_error);
  EXPECT_THROW(choose_token(std::vector<float>{-inf, -inf}, {}, 0), std::runtime_error);
}

}  // namespace
}  // namespace fivefold
