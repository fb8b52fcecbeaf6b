#include "kernels/cross_entropy.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

struct Geometry {
  int64_t rows, vocab, row_stride;
};
const std::vector<Geometry> kGeometries = {{1, 1, 1}, {1, 2, 16}, {5, 33, 40}, {17, 1000, 1024}, {3, 5001, 5056}};
constexpr float kScale = 1.0f / 37;

double log_sum_exp(const Values& logits) {
  double max = -INFINITY;
  for (double logit : logits) max = std::max(max, logit);
  double sum = 0;
  for (double logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

template <class T>
struct Case {
  Geometry g;
  double range;
  std::vector<T> logits = random_elements<T>(g.rows * g.row_stride, 1, range);
  std::vector<int32_t> targets = random_indices(g.rows, g.vocab, 2);
  std::vector<float> losses = std::vector<float>(static_cast<size_t>(g.rows), -1.0f);

  CrossEntropy<T> args(int num_threads = 2) {
    return {.logits = logits.data(),
            .targets = targets.data(),
            .losses = losses.data(),
            .rows = g.rows,
            .vocab = g.vocab,
            .row_stride = g.row_stride,
            .num_threads = num_threads};
  }
};

template <class T>
void check(const Geometry& g, double range) {
  Case<T> c{.g = g, .range = range};
  if (g.rows > 2) c.targets[1] = kIgnoredTarget;
  const Values logits = read(c.logits);
  Values losses, loss_error, gradient(logits.size()), gradient_error(logits.size());
  // Each exp: its own 4 roundings and that of its argument, which is at most 104 where exp is not 0; the sum: at most
  // 2048 terms in fp32.
  const double unit = (static_cast<double>(std::min<int64_t>(g.vocab, 2048)) + 104 + 10) * kUnitF32;
  for (int64_t r = 0; r < g.rows; ++r) {
    const size_t start = static_cast<size_t>(r * g.row_stride);
    const Values row(logits.begin() + r * g.row_stride, logits.begin() + r * g.row_stride + g.vocab);
    const int32_t target = c.targets[static_cast<size_t>(r)];
    if (target == kIgnoredTarget) {
      losses.push_back(0);
      loss_error.push_back(0);
      continue;
    }
    const double lse = log_sum_exp(row);
    losses.push_back(lse - row[static_cast<size_t>(target)]);
    loss_error.push_back(unit);
    for (size_t i = 0; i < row.size(); ++i) {
      const double p = std::exp(row[i] - lse);
      const double one = static_cast<int64_t>(i) == target ? 1 : 0;
      gradient[start + i] = (p - one) * static_cast<double>(kScale);
      gradient_error[start + i] = unit * (p + one * kUnitF32 / unit) * static_cast<double>(kScale);
    }
  }
  const std::string what =
      "cross-entropy over " + std::to_string(g.vocab) + " with logits up to " + std::to_string(range);
  const std::vector<T> before = c.logits;
  cross_entropy_forward(c.args());
  EXPECT_TRUE(bytes_of(c.logits) == bytes_of(before)) << "the forward alone must leave the logits";
  expect_within(c.losses, losses, loss_error, what + ", loss");
  const std::vector<float> forward_losses = c.losses;
  cross_entropy_forward_backward(c.args(), kScale);
  EXPECT_TRUE(bytes_of(c.losses) == bytes_of(forward_losses));
  expect_within(c.logits, gradient, gradient_error, what + ", gradient");
}

template <class T>
class CrossEntropyTest : public ::testing::Test {};
TYPED_TEST_SUITE(CrossEntropyTest, ElementTypes);

TYPED_TEST(CrossEntropyTest, MatchesTheDefinition) {
  for (const Geometry& g : kGeometries) {
    for (const double range : {1.0, 20.0, 1000.0}) check<TypeParam>(g, range);
  }
}

// A vocabulary in parts of unequal size, one for each rank, has the losses and the gradient of the whole one.
TYPED_TEST(CrossEntropyTest, PartsOfTheVocabularyGiveTheWhole) {
  for (const int ranks : {1, 2, 3, 7}) {
    for (const double range : {1.0, 30.0, 1000.0}) {
      Case<TypeParam> whole{.g = {9, 1003, 1003}, .range = range};
      whole.targets[4] = kIgnoredTarget;
      const std::vector<TypeParam> logits = whole.logits;
      cross_entropy_forward_backward(whole.args(), kScale);
      const int64_t width = (1003 + ranks - 1) / ranks;
      std::vector<RowStatistics> all(static_cast<size_t>(9 * ranks));
      std::vector<Case<TypeParam>> parts;
      std::vector<SplitVocabulary> splits;
      for (int rank = 0; rank < ranks; ++rank) {
        const int64_t first = rank * width, count = std::min(width, 1003 - first);
        parts.push_back({.g = {9, count, width + 2}, .range = 1.0});  // two columns of padding at least
        Case<TypeParam>& part = parts.back();
        part.targets = whole.targets;
        for (int64_t r = 0; r < 9; ++r)
          std::copy_n(logits.begin() + r * 1003 + first, count, part.logits.begin() + r * (width + 2));
        splits.push_back(
            {.first = first, .whole = 1003, .ranks = ranks, .own = all.data() + rank * 9, .all = all.data()});
        cross_entropy_statistics(part.args(), splits.back());
      }
      Values gradient(logits.size()), gradient_error(logits.size());
      const double unit = (1003 + 104 + 10) * 2 * kUnitF32;
      for (size_t i = 0; i < logits.size(); ++i) {
        gradient[i] = to_float(whole.logits[i]);
        gradient_error[i] = unit * (std::abs(gradient[i]) + kUnitF32) + kUnitF32 * static_cast<double>(kScale);
      }
      for (int rank = 0; rank < ranks; ++rank) {
        Case<TypeParam>& part = parts[static_cast<size_t>(rank)];
        const SplitVocabulary& split = splits[static_cast<size_t>(rank)];
        const std::vector<TypeParam> before = part.logits;
        split_cross_entropy_forward(part.args(), split);
        EXPECT_TRUE(bytes_of(part.logits) == bytes_of(before));
        split_cross_entropy_forward_backward(part.args(), split, kScale);
        for (int64_t r = 0; r < 9; ++r) {
          const auto row = static_cast<size_t>(r);
          EXPECT_NEAR(part.losses[row], whole.losses[row], 4 * kUnitF32 * std::max(1.0f, whole.losses[row])) << ranks;
          for (int64_t c = 0; c < width + 2; ++c) {
            const double found = to_float(part.logits[static_cast<size_t>(r * (width + 2) + c)]);
            if (c >= part.g.vocab) {
              EXPECT_EQ(found, 0.0) << "padding";
              continue;
            }
            const auto at = static_cast<size_t>(r * 1003 + split.first + c);
            const double rounding = std::is_same_v<TypeParam, float> ? 0 : std::abs(gradient[at]) / 128;
            EXPECT_NEAR(found, gradient[at], gradient_error[at] + rounding) << ranks << " ranks, row " << r;
          }
        }
      }
    }
  }
}

// Logits 0 and ln 3: probabilities 1/4 and 3/4; the loss of the first is ln 4 = 1.38629436.
TEST(CrossEntropyByHand, TwoLogits) {
  std::vector<float> logits = {0.0f, 1.0986123f, 50.0f};  // the third column is padding
  const std::vector<int32_t> targets = {0};
  std::vector<float> losses(1);
  cross_entropy_forward_backward<float>({.logits = logits.data(),
                                         .targets = targets.data(),
                                         .losses = losses.data(),
                                         .rows = 1,
                                         .vocab = 2,
                                         .row_stride = 3},
                                        0.5f);
  EXPECT_NEAR(losses[0], 1.38629436, 2e-7);
  EXPECT_NEAR(logits[0], -0.375, 1e-7);
  EXPECT_NEAR(logits[1], 0.375, 1e-7);
  EXPECT_EQ(logits[2], 0.0f);
}

TYPED_TEST(CrossEntropyTest, GradientMatchesFiniteDifferences) {
  Case<TypeParam> c{.g = {4, 29, 32}, .range = 3.0};
  const Values logits = read(c.logits);
  cross_entropy_forward_backward(c.args(), kScale);
  Values expected(logits.size()), error(logits.size(), 200 * kUnitF32 * static_cast<double>(kScale));
  for (int64_t r = 0; r < 4; ++r) {
    const Values row(logits.begin() + r * 32, logits.begin() + r * 32 + 29);
    const size_t target = static_cast<size_t>(c.targets[static_cast<size_t>(r)]);
    const Values gradient = gradient_by_differences(row, [&](const Values& p) { return log_sum_exp(p) - p[target]; });
    for (size_t i = 0; i < row.size(); ++i)
      expected[static_cast<size_t>(r * 32) + i] = gradient[i] * static_cast<double>(kScale);
  }
  expect_within(c.logits, expected, error, "cross-entropy gradient");
}

TYPED_TEST(CrossEntropyTest, NonFiniteLogitsShowInTheLoss) {
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    Case<TypeParam> c{.g = {1, 100, 100}, .range = 1.0};
    c.logits[40] = from_float<TypeParam>(static_cast<float>(bad));
    cross_entropy_forward_backward(c.args(), kScale);
    EXPECT_TRUE(std::isnan(c.losses[0]));
  }
}

TYPED_TEST(CrossEntropyTest, ThreadsChangeNoBit) {
  expect_same_bits_for_any_threads([](int num_threads) {
    Case<TypeParam> c{.g = {101, 3001, 3008}, .range = 5.0};
    cross_entropy_forward_backward(c.args(num_threads), kScale);
    return bytes_of(c.logits, c.losses);
  });
}

TEST(SumLosses, AddsInFp64) {
  // 2^24 and then ones: in fp32 every one of them would be lost.
  std::vector<float> losses(1001, 1.0f);
  losses[0] = 0x1p24f;
  EXPECT_EQ(sum_losses(losses.data(), 1001), 0x1p24 + 1000);
}

TEST(CrossEntropyDeathTest, ATargetOutsideTheVocabularyAborts) {
  std::vector<float> logits(8), losses(1);
  for (const int32_t target : {-1, 6}) {
    EXPECT_DEATH(cross_entropy_forward<float>({.logits = logits.data(),
                                               .targets = &target,
                                               .losses = losses.data(),
                                               .rows = 1,
                                               .vocab = 6,
                                               .row_stride = 8}),
                 "outside the vocabulary");
  }
}

}  // namespace
}  // namespace fivefold::kernels
