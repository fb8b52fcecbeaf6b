// Tensor and sequence parallelism against one rank: gradients and pre-clip norm under SGD with unequal numbers of valid
// tokens, replicas that must stay equal, padding that must stay zero. Names E15... are those of the case list of
// reported faults.
#include <gtest/gtest.h>

#include <cmath>

#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

// Sums over at most 128 terms in two orders, each within sqrt(128) roundings of 2^-24, through six products in a row. A
// missing sum over ranks, or one too many, is a factor of 2.
constexpr double kReordered = 4e-6;

std::vector<Layout> tensor_layouts() {
  std::vector<Layout> all;
  for (const bool sp : {false, true}) {
    for (const int tp : {2, 4}) {
      all.push_back({.micro = 4, .tp = tp, .sp = sp});
      all.push_back({.accumulation = 4, .tp = tp, .sp = sp});
    }
    for (const int zero : {0, 1, 2, 3}) {
      all.push_back({.dp = 2, .zero = zero, .accumulation = 2, .tp = 2, .sp = sp});
      all.push_back({.dp = 2, .zero = zero, .micro = 2, .recompute_every = 2, .tp = 4, .sp = sp});
    }
    all.push_back({.dp = 4, .zero = 3, .shard_size = 2, .tp = 2, .sp = sp});
  }
  return all;
}

class TensorParallelRun : public ::testing::TestWithParam<TinyKind> {
 protected:
  ProbeResult train(const Layout& layout, int updates, const std::vector<std::string>& settings = {}) const {
    ProbeRequest request = tiny_request(model_, batch_, layout, settings);
    if (updates == 0) request.config.config.optimizer.lr = 0;
    request.updates = std::max(updates, 1);
    request.want_parameters = true;
    return probe(request);
  }

  ModelSpec model_ = tiny_model(GetParam(), 3);
  GlobalBatch batch_ = ragged_batch(model_, {16, 3, 0, 7});
};

// Each logical element counts once in the norm, gradients are those of one rank whatever they are sums over: norms of a
// sequence shard (E20), of query and key heads (E21), keys and values that ranks share (E22, E23), padded rows of the
// vocabulary (E37: 61 rows over 2 and 4 ranks).
TEST_P(TensorParallelRun, E15E20E21E22E23E37GradientsAndNormOfOneRank) {
  const ProbeResult one = train({.micro = 4}, 3, {"optimizer.lr=0.05"});
  for (const Layout& layout : tensor_layouts()) {
    SCOPED_TRACE(layout.name());
    const ProbeResult result = train(layout, 3, {"optimizer.lr=0.05"});
    EXPECT_EQ(result.valid_tokens, one.valid_tokens);
    EXPECT_NEAR(result.loss, one.loss, 1e-6);
    EXPECT_NEAR(result.grad_norm / one.grad_norm, 1, 1e-6);
    EXPECT_LT(largest_difference(result.gradients, one.gradients), kReordered);
    EXPECT_LT(largest_difference(result.parameters, one.parameters), kReordered);
    for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(result.losses[i], one.losses[i], 1e-5);
    for (const uint64_t hash : result.parameter_hashes) EXPECT_EQ(hash, result.parameter_hashes[0]);
  }
}

// Clipping to half the norm scales every gradient alike.
TEST_P(TensorParallelRun, E15ClippingUsesTheNormOfTheWholeModel) {
  const ProbeResult free = train({.micro = 4}, 1);
  const std::vector<std::string> clip = {"optimizer.lr=0.1", "optimizer.clip=" + std::to_string(free.grad_norm / 2)};
  const ProbeResult one = train({.micro = 4}, 1, clip);
  for (const bool sp : {false, true}) {
    const ProbeResult result = train({.dp = 2, .zero = 2, .micro = 2, .tp = 2, .sp = sp}, 1, clip);
    EXPECT_LT(largest_difference(result.parameters, one.parameters), kReordered);
  }
}

// Twenty AdamW steps with decay: what ranks hold in common has the same bits on all of them, or gathering the weights
// on one rank and on another would not give the same.
TEST_P(TensorParallelRun, E20ReplicasStayEqual) {
  const std::vector<std::string> adam = {"optimizer.kind=adamw", "optimizer.lr=1e-3", "optimizer.weight_decay=0.1"};
  const ProbeResult one = train({.micro = 4}, 20, adam);
  for (const Layout& layout : {Layout{.micro = 4, .tp = 4, .sp = true}, Layout{.dp = 2, .zero = 1, .micro = 2, .tp = 2},
                               Layout{.dp = 2, .zero = 3, .micro = 2, .tp = 2, .sp = true}}) {
    SCOPED_TRACE(layout.name());
    const ProbeResult result = train(layout, 20, adam);
    EXPECT_NEAR(result.losses.back(), one.losses.back(), 1e-3);
    for (const uint64_t hash : result.parameter_hashes) EXPECT_EQ(hash, result.parameter_hashes[0]);
  }
}

// Initial weights depend on seed and name only; the same run twice has the same bits.
TEST_P(TensorParallelRun, E50InitialWeightsAndRepeatedRuns) {
  const ProbeResult one = train({.micro = 4}, 0);
  for (const int tp : {2, 4}) {
    for (const int zero : {0, 3}) {
      const Layout layout{.dp = 2, .zero = zero, .micro = 2, .tp = tp, .sp = tp == 4};
      SCOPED_TRACE(layout.name());
      EXPECT_TRUE(same_bits(train(layout, 0).parameters, one.parameters));
      EXPECT_TRUE(same_bits(train(layout, 3, {"optimizer.lr=0.05"}).parameters,
                            train(layout, 3, {"optimizer.lr=0.05"}).parameters));
    }
  }
}

// In bf16 the error against fp32 is at most twice that of one bf16 rank, per tensor, with a floor of 1e-3 of the norm.
TEST_P(TensorParallelRun, Bf16ErrorIsThatOfOneRank) {
  const ProbeResult right = train({.micro = 4}, 1), one = train({.micro = 4, .compute = "bf16"}, 1);
  for (const bool sp : {false, true}) {
    for (const Layout& layout : {Layout{.micro = 4, .compute = "bf16", .tp = 2, .sp = sp},
                                 Layout{.dp = 2, .zero = 3, .micro = 2, .compute = "bf16", .tp = 4, .sp = sp}}) {
      SCOPED_TRACE(layout.name());
      const ProbeResult result = train(layout, 1);
      const double floor = 1e-3 * norm(right.gradients);
      for (size_t t = 0; t < right.gradients.size(); ++t) {
        const auto error = [&](const ProbeResult& run) {
          double sum = 0;
          for (size_t i = 0; i < right.gradients[t].values.size(); ++i) {
            const double d = static_cast<double>(run.gradients[t].values[i]) - right.gradients[t].values[i];
            sum += d * d;
          }
          return std::sqrt(sum);
        };
        EXPECT_LE(error(result), 2 * std::max(error(one), floor)) << right.gradients[t].name;
      }
    }
  }
}

// A vocabulary and an MLP that the degree does not divide: 50 rows and 70 columns over 4 ranks leave 2 of padding each.
TEST(TensorParallelPadding, E37RowsAndColumnsOfPaddingStayOut) {
  for (const TinyKind kind : kTinyKinds) {
    ModelSpec model = tiny_model(kind);
    model.vocab = 50;
    for (LayerSpec& layer : model.layers) layer.mlp.ffn = 70;
    const GlobalBatch batch = ragged_batch(model, {16, 3, 0, 7});
    const auto run = [&](const Layout& layout) {
      ProbeRequest request = tiny_request(model, batch, layout,
                                          {"optimizer.kind=adamw", "optimizer.lr=1e-3", "optimizer.weight_decay=0.1"});
      request.updates = 3;
      request.want_parameters = true;
      return probe(request);
    };
    const ProbeResult one = run({.micro = 4});
    for (const int zero : {0, 1, 2, 3}) {
      for (const bool sp : {false, true}) {
        const Layout layout{.dp = 2, .zero = zero, .micro = 2, .tp = 4, .sp = sp};
        SCOPED_TRACE(to_string(kind) + " " + layout.name());
        const ProbeResult result = run(layout);
        EXPECT_NEAR(result.loss, one.loss, 1e-6);
        EXPECT_NEAR(result.grad_norm / one.grad_norm, 1, 1e-6);
        EXPECT_LT(largest_difference(result.gradients, one.gradients), kReordered);
        EXPECT_NEAR(result.losses.back(), one.losses.back(), 1e-4);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParallelRun, ::testing::ValuesIn(kTinyKinds),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace fivefold::testing
