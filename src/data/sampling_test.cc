#include "data/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace fivefold {
namespace {

std::vector<int64_t> all_of(int64_t size, uint64_t seed, uint64_t stream) {
  const Permutation permutation(size, seed, stream);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < size; ++i) out.push_back(permutation(i));
  return out;
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<int64_t> first_integers(int64_t count) {
  std::vector<int64_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

TEST(Permutation, HitsEveryIndexOnce) {
  for (int64_t size = 1; size <= 300; ++size) EXPECT_EQ(sorted(all_of(size, 3, 4)), first_integers(size)) << size;
  for (const int64_t size : {4095, 4096, 4097, 100'003}) EXPECT_EQ(sorted(all_of(size, 3, 4)), first_integers(size));
}

TEST(Permutation, StaysInRangeForHugeSizes) {
  const int64_t size = (int64_t{1} << 61) + 12345;
  const Permutation permutation(size, 1, 2);
  for (int64_t i = 0; i < 100; ++i) {
    const int64_t at = permutation(size - 1 - i);
    EXPECT_GE(at, 0);
    EXPECT_LT(at, size);
  }
}

// Over 23,000 seeds each of 23 values is expected 1000 times at index 0, with standard deviation
// sqrt(23000 * 1/23 * 22/23) = 30.9; chi-square with 22 degrees of freedom has mean 22 and standard deviation 6.6. The
// bound is the mean plus five of them.
TEST(Permutation, SpreadsAnIndexEvenlyOverTheSeeds) {
  std::vector<double> counts(23);
  for (uint64_t seed = 0; seed < 23'000; ++seed) counts[static_cast<size_t>(Permutation(23, seed, 0)(0))] += 1;
  double chi_square = 0;
  for (const double count : counts) chi_square += (count - 1000) * (count - 1000) / 1000;
  EXPECT_LT(chi_square, 55);
}

// Case E52: the seed has an effect, in every epoch.
TEST(SampleOrder, DependsOnTheSeed) {
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> one, two;
    for (int64_t i = 0; i < 23; ++i) {
      one.push_back(SampleOrder(23, 1).sample_at(epoch * 23 + i));
      two.push_back(SampleOrder(23, 2).sample_at(epoch * 23 + i));
    }
    EXPECT_NE(one, two);
  }
}

TEST(SampleOrder, EpochsAreDifferentPermutations) {
  const SampleOrder order(23, 7);
  std::vector<std::vector<int64_t>> epochs(3);
  for (int64_t position = 0; position < 69; ++position) {
    epochs[static_cast<size_t>(order.epoch_of(position))].push_back(order.sample_at(position));
  }
  for (const auto& epoch : epochs) {
    EXPECT_EQ(sorted(epoch), first_integers(23));
    EXPECT_NE(epoch, first_integers(23));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_NE(epochs[0], epochs[2]);
}

// The samples of steps [first, last), in the order of the global batch: microbatch, then rank, then row.
std::vector<int64_t> run(int64_t first_step, int64_t last_step, int64_t dp, int64_t micro) {
  const SampleOrder order(23, 42);
  std::vector<int64_t> seen;
  for (int64_t step = first_step; step < last_step; ++step) {
    BatchLayout layout{.global_batch = 4, .micro_batch = micro, .dp = dp};
    EXPECT_TRUE(check_batch_layout(layout).ok());
    for (int64_t microbatch = 0; microbatch < layout.num_microbatches(); ++microbatch) {
      for (layout.dp_rank = 0; layout.dp_rank < dp; ++layout.dp_rank) {
        const int64_t first = layout.first_position(step * layout.global_batch, microbatch);
        for (int64_t row = 0; row < micro; ++row) seen.push_back(order.sample_at(first + row));
      }
    }
  }
  return seen;
}

// Case E77: 23 samples, global batch 4, 3 epochs (18 steps, the last one reaches into a fourth epoch).
TEST(SampleOrder, ResumesAtAnyStepOnAnyNumberOfRanks) {
  const int64_t steps = 18;
  const std::vector<int64_t> unbroken = run(0, steps, 2, 1);
  ASSERT_EQ(unbroken.size(), 72U);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(sorted({unbroken.begin() + 23 * epoch, unbroken.begin() + 23 * (epoch + 1)}), first_integers(23));
  }
  for (int64_t stop = 0; stop <= steps; ++stop) {
    for (const auto& [dp, micro] : {std::pair{2, 1}, {4, 1}, {1, 1}, {1, 2}, {1, 4}, {2, 2}}) {
      std::vector<int64_t> seen = run(0, stop, 2, 1);
      const std::vector<int64_t> rest = run(stop, steps, dp, micro);
      seen.insert(seen.end(), rest.begin(), rest.end());
      EXPECT_EQ(seen, unbroken) << "stopped at " << stop << ", resumed with dp " << dp << ", micro " << micro;
    }
  }
}

// B = 12, b = 2, D = 3: microbatch 1 of rank 2 starts at consumed + (1 * 3 + 2) * 2.
TEST(BatchLayout, GivesEachRankNeighboursWithinAMicrobatch) {
  const BatchLayout layout{.global_batch = 12, .micro_batch = 2, .dp = 3, .dp_rank = 2};
  EXPECT_EQ(layout.num_microbatches(), 2);
  EXPECT_EQ(layout.first_position(24, 0), 28);
  EXPECT_EQ(layout.first_position(24, 1), 34);
}

TEST(BatchLayout, RefusesWithTheNearestGlobalBatch) {
  const auto hint = [](BatchLayout layout) {
    const Status status = check_batch_layout(layout);
    return status.ok() ? "ok" : status.error().message();
  };
  EXPECT_EQ(hint({.global_batch = 10, .micro_batch = 2, .dp = 2}),
            "batch.global: 10 is not a multiple of micro x dp = 2 x 2 (use 8 or 12)");
  EXPECT_EQ(hint({.global_batch = 3, .micro_batch = 2, .dp = 2}),
            "batch.global: 3 is not a multiple of micro x dp = 2 x 2 (use 4)");
  EXPECT_EQ(hint({.global_batch = 0}), "batch.global: 0 is not between 1 and 2^30");
  EXPECT_EQ(hint({.global_batch = 4, .dp = 2, .dp_rank = 2}), "parallel.dp: there is no rank 2 of 2");
}

}  // namespace
}  // namespace fivefold
