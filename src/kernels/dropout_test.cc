#include "kernels/dropout.h"

#include <numeric>

#include "base/philox.h"
#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

constexpr uint64_t kSeed = 0x123456789abcdefULL;
const uint64_t kStream = random_stream("layers.0.qkv.weight.dropout");

// As the header says it, from the generator itself.
bool dropped(int64_t token, int64_t width, int64_t column, uint32_t threshold) {
  const auto element = static_cast<uint64_t>(token * width + column);
  const uint32_t word = random_word(kSeed, kStream, element / 2);
  return (element % 2 == 0 ? word & 0xffff : word >> 16) < threshold;
}

template <class T>
class Dropout : public ::testing::Test {};
TYPED_TEST_SUITE(Dropout, ElementTypes);

// A part of the columns of some tokens in any order, written and added.
TYPED_TEST(Dropout, IsAFunctionOfTokenAndColumn) {
  const std::vector<int64_t> tokens = {7, 0, int64_t{1} << 40, 8, 7};
  const auto rows = static_cast<int64_t>(tokens.size());
  for (const int64_t cols : {1, 13, 1024, 2500}) {
    for (const double probability : {0.0, 0.1, 0.5, 0.999}) {
      const int64_t width = cols + 40, first = 31;
      const auto threshold = static_cast<uint32_t>(std::nearbyint(probability * 65536));
      const auto factor = static_cast<float>(1 / (1 - threshold / 65536.0));
      const std::vector<TypeParam> x = random_elements<TypeParam>(rows * cols, 1);
      std::vector<TypeParam> y(x.size()), added = random_elements<TypeParam>(rows * cols, 2);
      const std::vector<TypeParam> before = added;
      const DropoutMask mask{.seed = kSeed,
                             .stream = kStream,
                             .tokens = tokens.data(),
                             .width = width,
                             .first_column = first,
                             .probability = probability};
      dropout(x.data(), mask, rows, cols, y.data(), Accumulate::kOverwrite, 2);
      dropout(x.data(), mask, rows, cols, added.data(), Accumulate::kAdd, 2);
      for (int64_t i = 0; i < rows * cols; ++i) {
        const auto at = static_cast<size_t>(i);
        const bool gone = dropped(tokens[static_cast<size_t>(i / cols)], width, first + i % cols, threshold);
        const float kept = gone ? 0.0f : factor * to_float(x[at]);
        ASSERT_EQ(to_float(y[at]), to_float(from_float<TypeParam>(kept))) << i;
        const double sum = static_cast<double>(to_float(before[at])) + static_cast<double>(kept);
        ASSERT_NEAR(to_float(added[at]), sum, kUnit<TypeParam> * std::abs(sum) + 4 * kUnitF32) << i;
      }
    }
  }
}

// Mean 1 of ones, and the share that is dropped is the probability, to four standard deviations.
TEST(DropoutShare, IsTheProbability) {
  constexpr int64_t kRows = 1000, kCols = 1000;
  const std::vector<float> ones(kRows * kCols, 1.0f);
  std::vector<float> y(ones.size());
  std::vector<int64_t> tokens(kRows);
  std::iota(tokens.begin(), tokens.end(), 0);
  for (const double probability : {0.05, 0.1, 0.5}) {
    dropout(ones.data(), {kSeed, kStream, tokens.data(), kCols, 0, probability}, kRows, kCols, y.data(),
            Accumulate::kOverwrite, 2);
    const auto gone = static_cast<double>(std::count(y.begin(), y.end(), 0.0f));
    const double n = kRows * kCols;
    EXPECT_NEAR(gone / n, probability, 4 * std::sqrt(probability * (1 - probability) / n));
    EXPECT_NEAR(std::accumulate(y.begin(), y.end(), 0.0) / n, 1, 4 * std::sqrt(probability / (1 - probability) / n));
    EXPECT_NEAR(applied_dropout(probability), probability, 0x1p-17);
  }
  EXPECT_LT(applied_dropout(0.9999999), 1);
}

// E54: other seeds and other linears have masks of their own, that agree as often as chance has it.
TEST(DropoutShare, SeedsAndStreamsHaveMasksOfTheirOwn) {
  constexpr int64_t kRows = 100, kCols = 1000;
  const std::vector<float> ones(kRows * kCols, 1.0f);
  std::vector<int64_t> tokens(kRows);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto mask = [&](uint64_t seed, uint64_t stream) {
    std::vector<float> y(ones.size());
    dropout(ones.data(), {seed, stream, tokens.data(), kCols, 0, 0.5}, kRows, kCols, y.data(), Accumulate::kOverwrite,
            2);
    return y;
  };
  const std::vector<float> first = mask(1, kStream);
  EXPECT_EQ(mask(1, kStream), first);
  for (const std::vector<float>& other : {mask(2, kStream), mask(1, kStream + 1)}) {
    int64_t same = 0;
    for (size_t i = 0; i < first.size(); ++i) same += first[i] == other[i] ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(same) / (kRows * kCols), 0.5, 4 * 0.5 / std::sqrt(kRows * kCols));
  }
}

TYPED_TEST(Dropout, ThreadsChangeNoBit) {
  const std::vector<TypeParam> x = random_elements<TypeParam>(300 * 77, 1);
  std::vector<int64_t> tokens(300);
  std::iota(tokens.begin(), tokens.end(), 5);
  expect_same_bits_for_any_threads([&](int num_threads) {
    std::vector<TypeParam> y(x.size());
    dropout(x.data(), {kSeed, kStream, tokens.data(), 77, 0, 0.3}, 300, 77, y.data(), Accumulate::kOverwrite,
            num_threads);
    return bytes_of(y);
  });
}

}  // namespace
}  // namespace fivefold::kernels
