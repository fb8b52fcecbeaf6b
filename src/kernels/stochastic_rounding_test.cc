#include "kernels/stochastic_rounding.h"

#include <limits>

#include "base/philox.h"
#include "kernels/kernel_testing.h"
#include "kernels/optimizer.h"

namespace fivefold::kernels {
namespace {

TEST(StochasticRounding, BitsAreHalvesOfThePhiloxWords) {
  const uint64_t seed = 0x123456789abcdefULL, stream = random_stream("a.weight");
  for (const auto& [first, n] :
       {std::pair<int64_t, int64_t>{0, 1024}, {3, 1}, {5, 1000}, {7, 1024}, {(int64_t{1} << 35) + 13, 77}}) {
    std::vector<uint16_t> halves(kRandomHalves);
    const uint16_t* bits = draw_halves({.seed = seed, .stream = stream, .first = first}, 0, n, halves.data());
    for (int64_t i = 0; i < n; ++i) {
      const auto element = static_cast<uint64_t>(first + i);
      const uint32_t word = random_word(seed, stream, element / 2);
      ASSERT_EQ(bits[i], static_cast<uint16_t>(element % 2 == 0 ? word : word >> 16)) << first << " + " << i;
    }
  }
}

// Three rows of 5 of a matrix that is 20 wide, from its column 7 on, with 3 columns of padding: as the matrix draws.
TEST(StochasticRounding, RunsDrawWhatTheWholeDraws) {
  std::vector<StreamRun> runs;
  for (int64_t row = 0; row < 3; ++row) runs.push_back({8 * row, 20 * (row + 4) + 7});
  for (const auto& [begin, n] : {std::pair<int64_t, int64_t>{0, 24}, {3, 15}, {9, 2}, {23, 1}}) {
    std::vector<uint16_t> halves(kRandomHalves), right(kRandomHalves);
    const uint16_t* bits = draw_halves({.seed = 9, .stream = 2, .first = 0, .runs = runs}, begin, n, halves.data());
    for (int64_t i = begin; i < begin + n; ++i) {
      if (i % 8 >= 5) continue;
      const int64_t position = 20 * (i / 8 + 4) + 7 + i % 8;
      EXPECT_EQ(bits[i - begin], *draw_halves({.seed = 9, .stream = 2, .first = position}, 0, 1, right.data())) << i;
    }
  }
}

TEST(StochasticRounding, ExactValuesStayAndSpecialOnesAreKept) {
  for (const uint32_t random : {0u, 1u, 0x8000u, 0xffffu}) {
    for (const float exact : {0.0f, -0.0f, 1.0f, -1.5f, 0x1p-130f})
      EXPECT_EQ(std::bit_cast<uint32_t>(to_float(round_stochastically(exact, random))), std::bit_cast<uint32_t>(exact));
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(to_float(round_stochastically(-infinity, random)), -infinity);
    EXPECT_TRUE(std::isnan(to_float(round_stochastically(std::bit_cast<float>(0x7f800001u), random))));
    EXPECT_TRUE(std::isnan(to_float(round_stochastically(std::bit_cast<float>(0xffffffffu), random))));
  }
}

// 1 + 2^-7 k/2^16 goes up for exactly k of the 2^16 draws.
TEST(StochasticRounding, GoesUpInProportionToTheDistance) {
  for (const uint32_t k : {1u, 16384u, 32768u, 65535u}) {
    for (const float sign : {1.0f, -1.0f}) {
      const float value = sign * std::bit_cast<float>(0x3f800000u + k);
      uint32_t up = 0;
      for (uint32_t random = 0; random < 0x10000; ++random)
        up += std::abs(to_float(round_stochastically(value, random))) > 1.0f ? 1 : 0;
      EXPECT_EQ(up, k);
    }
  }
}

template <class S>
AdamW<float, S> constant_step(std::vector<S>& m, std::vector<S>& v, const std::vector<float>& grad, int step) {
  AdamW<float, S> a;
  a.m = m.data();
  a.v = v.data();
  a.grad = grad.data();
  a.n = static_cast<int64_t>(grad.size());
  a.lr = 6e-4;
  a.step = step;
  return a;
}

// A weight of 1 under a constant gradient moves by lr a step: after 100 steps of 6e-4 it is at 0.94. The distance from
// 1 to the bf16 below is 2^-8 = 0.0039, so rounding to nearest drops every step. 4096 weights: the mean of independent
// roundings has a standard error of about 0.02 / 64.
TEST(OptimizerCases, E59Bf16WeightsWithoutMasterKeepTheirUpdates) {
  constexpr size_t kN = 4096;
  const std::vector<float> grad(kN, 0.5f);
  std::vector<float> m(kN), v(kN), master(kN, 1.0f);
  std::vector<float> m1(kN), v1(kN), m2(kN), v2(kN), nearest(kN, 1.0f);
  std::vector<BFloat16> stochastic(kN, from_float<BFloat16>(1.0f));
  for (int step = 1; step <= 100; ++step) {
    auto exact = constant_step(m, v, grad, step);
    exact.param = master.data();
    adamw_step(exact);
    auto dropped = constant_step(m1, v1, grad, step);
    dropped.param = nearest.data();
    adamw_step(dropped);
    for (float& value : nearest) value = to_float(from_float<BFloat16>(value));
    auto kept = constant_step(m2, v2, grad, step);
    kept.param_bf16 = stochastic.data();
    kept.rounding = {.seed = 1, .stream = static_cast<uint64_t>(step), .first = 0};
    adamw_step(kept);
  }
  EXPECT_NEAR(master[0], 0.94, 1e-4);
  EXPECT_EQ(nearest[0], 1.0f);
  double mean = 0;
  for (const double value : read(stochastic)) mean += value / kN;
  std::printf("mean after 100 steps: %.4f\n", mean);
  EXPECT_NEAR(1 - mean, 0.06, 0.02 * 0.06);
}

// Cut anywhere, with the stream's position given: the same bits.
TEST(StochasticRounding, StepsOfPartsEqualTheStepOfTheWhole) {
  constexpr int64_t kN = 40000;
  const std::vector<float> grad = random_elements<float>(kN, 11);
  const std::vector<BFloat16> start = random_elements<BFloat16>(kN, 12);
  const auto run = [&](const std::vector<int64_t>& cuts, int num_threads) {
    std::vector<BFloat16> weights = start, m(kN), v(kN);
    std::vector<float> momentum(kN);
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      const int64_t from = cuts[c], count = cuts[c + 1] - from;
      AdamW<float, BFloat16> a{.m = m.data() + from,
                               .v = v.data() + from,
                               .grad = grad.data() + from,
                               .param_bf16 = weights.data() + from,
                               .n = count,
                               .lr = 1e-3,
                               .step = 1,
                               .num_threads = num_threads};
      a.rounding = {.seed = 4, .stream = 5, .first = 1000 + from};
      adamw_step(a);
      Sgd<float> s{.momentum_buffer = momentum.data() + from,
                   .grad = grad.data() + from,
                   .param_bf16 = weights.data() + from,
                   .n = count,
                   .lr = 1e-3,
                   .momentum = 0.9,
                   .num_threads = num_threads};
      s.rounding = {.seed = 4, .stream = 6, .first = 1000 + from};
      sgd_step(s);
    }
    return bytes_of(weights, m, v, momentum);
  };
  const std::string whole = run({0, kN}, 1);
  EXPECT_TRUE(run({0, 1, 17, 1023, 16400, kN}, 2) == whole);
  expect_same_bits_for_any_threads([&](int num_threads) { return run({0, kN}, num_threads); });
}

}  // namespace
}  // namespace fivefold::kernels
