// Every valid token of a global batch weighs the same, however the batch is cut into microbatches and over ranks: loss,
// gradients and the norm before clipping, under SGD. Names E01... are those of the case list of reported faults.
#include <gtest/gtest.h>

#include <cmath>

#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

// Sums over at most 256 tokens in two orders, each within sqrt(256) roundings of 2^-24.
constexpr double kReordered = 2e-6;

class LossNormalization : public ::testing::TestWithParam<TinyKind> {
 protected:
  ModelSpec model_ = tiny_model(GetParam());
};

void expect_equal_runs(const ProbeResult& a, const ProbeResult& b) {
  EXPECT_EQ(a.valid_tokens, b.valid_tokens);
  EXPECT_NEAR(a.loss / b.loss, 1, kReordered);
  EXPECT_NEAR(a.grad_norm / b.grad_norm, 1, kReordered);
  EXPECT_LT(largest_difference(a.gradients, b.gradients), kReordered);
}

// sum over rows (valid tokens x gradient of the row's own mean) / all valid tokens, in fp64: the definition.
std::vector<NamedTensor> token_weighted(const ModelSpec& model, const GlobalBatch& batch) {
  std::vector<NamedTensor> mean;
  std::vector<std::vector<double>> sums;
  double tokens = 0;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const ProbeResult one = probe(tiny_request(model, select_rows(batch, {row}), {}));
    if (mean.empty()) {
      mean = one.gradients;
      for (const NamedTensor& tensor : mean) sums.emplace_back(tensor.values.size(), 0.0);
    }
    tokens += static_cast<double>(one.valid_tokens);
    for (size_t t = 0; t < sums.size(); ++t)
      for (size_t i = 0; i < sums[t].size(); ++i)
        sums[t][i] += static_cast<double>(one.valid_tokens) * static_cast<double>(one.gradients[t].values[i]);
  }
  for (size_t t = 0; t < sums.size(); ++t)
    for (size_t i = 0; i < sums[t].size(); ++i) mean[t].values[i] = static_cast<float>(sums[t][i] / tokens);
  return mean;
}

// Windows of 1, 2 and 4 microbatches, and one cut after the first row: rows (0, -, -) and (1, 2, 3).
TEST_P(LossNormalization, E01AccumulationWeighsTokensNotMicrobatches) {
  const GlobalBatch batch = ragged_batch(model_, {3, 9, 16, 1});
  const std::vector<NamedTensor> right = token_weighted(model_, batch);
  const ProbeResult whole = probe(tiny_request(model_, batch, {.micro = 4}));
  EXPECT_EQ(whole.valid_tokens, 29);
  EXPECT_LT(largest_difference(whole.gradients, right), kReordered);
  expect_equal_runs(probe(tiny_request(model_, batch, {.micro = 2, .accumulation = 2})), whole);
  expect_equal_runs(probe(tiny_request(model_, batch, {.micro = 1, .accumulation = 4})), whole);
  const GlobalBatch uneven = select_rows(batch, {0, -1, -1, 1, 2, 3});
  expect_equal_runs(probe(tiny_request(model_, uneven, {.micro = 3, .accumulation = 2})), whole);
}

// No valid token anywhere: no update, not even of decay, and no NaN.
TEST_P(LossNormalization, E01WindowWithoutValidTokensChangesNothing) {
  const GlobalBatch batch = ragged_batch(model_, {0, 0, 0, 0});
  const auto run = [&](const Layout& layout, const std::string& rate) {
    ProbeRequest request =
        tiny_request(model_, batch, layout,
                     {"optimizer.kind=adamw", "optimizer.weight_decay=0.1", "optimizer.decay=all", "optimizer.clip=1"});
    request.config.config.optimizer.lr = std::stod(rate);
    request.updates = 2;
    request.want_parameters = true;
    return probe(request);
  };
  const ProbeResult still = run({.micro = 4}, "0");
  for (const Layout& layout : {Layout{.micro = 4}, Layout{.dp = 2, .zero = 1, .accumulation = 2},
                               Layout{.dp = 4, .zero = 2}, Layout{.dp = 4, .zero = 3, .shard_size = 2}}) {
    SCOPED_TRACE(layout.name());
    const ProbeResult result = run(layout, "0.1");
    EXPECT_EQ(result.valid_tokens, 0);
    EXPECT_EQ(result.loss, 0);
    EXPECT_EQ(result.grad_norm, 0);
    for (const double loss : result.losses) EXPECT_EQ(loss, 0);
    EXPECT_EQ(norm(result.gradients), 0);
    EXPECT_TRUE(same_bits(result.parameters, still.parameters));
  }
}

// A rank with 2, 14, 0 and 7 valid tokens; the empty one joins every collective.
TEST_P(LossNormalization, E02UnequalAndZeroValidTokensPerRank) {
  const GlobalBatch batch = ragged_batch(model_, {2, 14, 0, 7});
  const ProbeResult whole = probe(tiny_request(model_, batch, {.micro = 4}));
  EXPECT_EQ(whole.valid_tokens, 23);
  EXPECT_LT(largest_difference(whole.gradients, token_weighted(model_, select_rows(batch, {0, 1, 3}))), kReordered);
  for (const int zero : {0, 1, 2, 3}) {
    for (Layout layout : {Layout{.dp = 2, .micro = 2}, Layout{.dp = 2, .accumulation = 2}, Layout{.dp = 4}}) {
      layout.zero = zero;
      SCOPED_TRACE(layout.name());
      expect_equal_runs(probe(tiny_request(model_, batch, layout)), whole);
    }
  }
}

// Every rank has the same row: the mean over all of them is the mean over one, whatever their number.
TEST_P(LossNormalization, E03ScaleDoesNotDependOnTheNumberOfRanks) {
  const GlobalBatch batch = ragged_batch(model_, {11});
  const ProbeResult one = probe(tiny_request(model_, batch, {}));
  for (const int dp : {2, 3, 4, 8}) {
    for (const int zero : {0, 1, 2, 3}) {
      const Layout layout{.dp = dp, .zero = zero};
      SCOPED_TRACE(layout.name());
      const ProbeResult many =
          probe(tiny_request(model_, select_rows(batch, std::vector<int64_t>(static_cast<size_t>(dp), 0)), layout));
      EXPECT_EQ(many.valid_tokens, 11 * dp);
      EXPECT_NEAR(many.loss / one.loss, 1, kReordered);
      EXPECT_NEAR(many.grad_norm / one.grad_norm, 1, kReordered);
      EXPECT_LT(largest_difference(many.gradients, one.gradients), kReordered);
    }
  }
}

// Global batch 16 as every (rows per microbatch, microbatches) over 1, 2 and 4 ranks; and what is displayed (E09).
TEST_P(LossNormalization, E06E09NormAndLoggedLossDoNotDependOnTheCut) {
  const GlobalBatch batch = ragged_batch(model_, {16, 3, 1, 0, 12, 7, 16, 5, 2, 9, 0, 0, 14, 6, 8, 11});
  const ProbeResult whole = probe(tiny_request(model_, batch, {.micro = 16}));
  EXPECT_EQ(whole.valid_tokens, 110);
  int zero = 0;
  for (const int dp : {1, 2, 4}) {
    for (int micro = 1; micro * dp <= 16; micro *= 2) {
      const Layout layout{.dp = dp, .zero = zero++ % 4, .micro = micro, .accumulation = 16 / dp / micro};
      SCOPED_TRACE(layout.name());
      expect_equal_runs(probe(tiny_request(model_, batch, layout)), whole);
    }
  }
}

// The norm counts every element once, whoever holds it, and so does clipping, here to half of the norm.
TEST_P(LossNormalization, E19NormUnderHybridSharding) {
  const GlobalBatch batch = ragged_batch(model_, {16, 3, 0, 7});
  const ProbeResult one = probe(tiny_request(model_, batch, {.micro = 4}));
  double sum = 0;
  for (const NamedTensor& gradient : one.gradients)
    for (const float value : gradient.values) sum += static_cast<double>(value) * value;
  EXPECT_NEAR(one.grad_norm / std::sqrt(sum), 1, kReordered);
  const auto clipped = [&](const Layout& layout) {
    ProbeRequest request = tiny_request(model_, batch, layout,
                                        {"optimizer.lr=0.5", "optimizer.clip=" + std::to_string(one.grad_norm / 2)});
    request.updates = 1;
    request.want_parameters = true;
    return probe(request);
  };
  const ProbeResult right = clipped({.micro = 4});
  for (const int zero : {1, 2, 3}) {
    for (const int shard_size : {4, 2, 1}) {
      const Layout layout{.dp = 4, .zero = zero, .shard_size = shard_size};
      SCOPED_TRACE(layout.name());
      const ProbeResult result = clipped(layout);
      EXPECT_NEAR(result.grad_norm / one.grad_norm, 1, kReordered);
      EXPECT_LT(largest_difference(result.parameters, right.parameters), kReordered);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LossNormalization, ::testing::ValuesIn(kTinyKinds),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace fivefold::testing
