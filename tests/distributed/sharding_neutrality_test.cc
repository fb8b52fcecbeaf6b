// What must not depend on the layout: initial weights, which elements train, decay, and the weights after some steps;
// and what must be the same bits: replicas, runs, and runs with gathers further ahead. Names E24... are those of the
// case list of reported faults.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

// Sums over at most 64 tokens in two orders, each within sqrt(64) roundings of 2^-24.
constexpr double kReordered = 1e-6;

class ShardingNeutrality : public ::testing::TestWithParam<TinyKind> {
 protected:
  // Parameters after `updates` steps (0: as initialised).
  ProbeResult train(const Layout& layout, int updates, const std::vector<std::string>& settings = {}) const {
    ProbeRequest request = tiny_request(model_, batch_, layout, settings);
    if (updates == 0) request.config.config.optimizer.lr = 0;
    request.updates = std::max(updates, 1);
    request.want_parameters = true;
    return probe(request);
  }
  static void expect_equal_replicas(const ProbeResult& result) {
    for (const uint64_t hash : result.parameter_hashes) EXPECT_EQ(hash, result.parameter_hashes[0]);
  }

  ModelSpec model_ = tiny_model(GetParam(), 3);
  GlobalBatch batch_ = ragged_batch(model_, {16, 3, 0, 7});
};

// With one stage there is one copy of a tied matrix: its two contributions are reduced once, and 20 decaying steps
// leave all replicas with the same bits.
TEST_P(ShardingNeutrality, E24E26TiedMatrixUnderSharding) {
  const ProbeResult one = train({.micro = 4}, 1);
  for (const int zero : {1, 2, 3}) {
    for (const Layout& layout :
         {Layout{.dp = 2, .zero = zero, .accumulation = 2}, Layout{.dp = 4, .zero = zero, .shard_size = 2}}) {
      SCOPED_TRACE(layout.name());
      const ProbeResult result =
          train(layout, 20, {"optimizer.kind=adamw", "optimizer.lr=1e-3", "optimizer.weight_decay=0.1"});
      EXPECT_LT(largest_difference(result.gradients, one.gradients), kReordered);
      expect_equal_replicas(result);
    }
  }
}

// Gathers early or late, of weights before the forward (level 3) or after the step (levels 1 and 2, where the next
// forward overlaps them): the same bits after ten steps, and those of level 0, which gathers nothing.
TEST_P(ShardingNeutrality, E31OverlappedGathersReadThisStepsWeights) {
  const std::vector<std::string> adam = {"optimizer.kind=adamw", "optimizer.lr=1e-2"};
  const auto with = [&](const std::string& setting) {
    std::vector<std::string> settings = adam;
    settings.push_back(setting);
    return settings;
  };
  const ProbeResult none = train({.dp = 4, .zero = 0}, 10, adam);
  EXPECT_LT(none.losses.back(), none.losses.front());
  for (const int zero : {1, 2})
    EXPECT_TRUE(same_bits(train({.dp = 4, .zero = zero}, 10, adam).parameters, none.parameters));
  for (const int prefetch : {0, 1, 2, 5})
    EXPECT_TRUE(
        same_bits(train({.dp = 4, .zero = 3}, 10, with("parallel.prefetch=" + std::to_string(prefetch))).parameters,
                  none.parameters))
        << "prefetch " << prefetch;
  const ProbeResult recomputed = train({.dp = 4, .zero = 3, .recompute_every = 2}, 10, with("parallel.prefetch=2"));
  EXPECT_TRUE(same_bits(recomputed.parameters, none.parameters));
}

// One collective for two or all layers, and one reduction a step: the same bits. At level 3 a microbatch's gradients
// are then added up as at level 1, before they are reduced.
TEST_P(ShardingNeutrality, BucketsAndTheTimeOfReduction) {
  const std::vector<std::string> adam = {"optimizer.kind=adamw", "optimizer.lr=1e-2"};
  for (const int zero : {0, 1, 2, 3}) {
    const Layout base{.dp = 4, .zero = zero, .shard_size = zero == 0 ? 0 : 2};
    const ProbeResult each = train(base, 5, adam);
    for (const int bucket : {2, 3}) {
      Layout layout = base;
      layout.bucket_layers = bucket;
      EXPECT_TRUE(same_bits(train(layout, 5, adam).parameters, each.parameters)) << layout.name();
    }
  }
  const ProbeResult level1 = train({.dp = 2, .zero = 1, .accumulation = 2}, 5, adam);
  for (const int bucket : {1, 2}) {
    const ProbeResult once =
        train({.dp = 2, .zero = 3, .accumulation = 2, .reduce = "step", .bucket_layers = bucket}, 5, adam);
    EXPECT_TRUE(same_bits(once.parameters, level1.parameters)) << bucket;
  }
}

// One SGD step with lr 1 moves every element that has a gradient, in every layer.
TEST_P(ShardingNeutrality, E34EveryElementTrains) {
  for (const Layout& layout : {Layout{.micro = 4}, Layout{.dp = 4, .zero = 1}, Layout{.dp = 4, .zero = 2},
                               Layout{.dp = 4, .zero = 3}, Layout{.dp = 4, .zero = 3, .shard_size = 2}}) {
    SCOPED_TRACE(layout.name());
    const ProbeResult before = train(layout, 0), after = train(layout, 1, {"optimizer.lr=1"});
    std::set<std::string> layers;
    int64_t moved = 0, elements = 0;
    for (size_t t = 0; t < after.parameters.size(); ++t) {
      const std::vector<float>&from = before.parameters[t].values, &to = after.parameters[t].values;
      for (size_t i = 0; i < to.size(); ++i) {
        const float gradient = after.gradients[t].values[i];
        EXPECT_EQ(to[i], from[i] - gradient) << after.parameters[t].name << "[" << i << "]";
        moved += to[i] != from[i];
      }
      elements += static_cast<int64_t>(to.size());
      const std::string& name = after.parameters[t].name;
      const std::string prefix = GetParam() == TinyKind::kGpt2 ? "transformer.h." : "model.layers.";
      if (name.starts_with(prefix)) layers.insert(name.substr(prefix.size(), 1));
    }
    EXPECT_EQ(layers, (std::set<std::string>{"0", "1", "2"}));
    // Rows of ids that the batch does not hold, where the matrix is not tied.
    EXPECT_GT(static_cast<double>(moved), 0.9 * static_cast<double>(elements));
  }
}

TEST_P(ShardingNeutrality, E50InitialWeightsDependOnSeedAndNameOnly) {
  const ProbeResult one = train({.micro = 4}, 0);
  for (const Layout& layout :
       {Layout{.dp = 2, .micro = 2}, Layout{.dp = 2, .zero = 1, .micro = 2}, Layout{.dp = 4, .zero = 2},
        Layout{.dp = 4, .zero = 3}, Layout{.dp = 4, .zero = 3, .shard_size = 2},
        Layout{.dp = 4, .zero = 3, .compute = "bf16"}}) {
    SCOPED_TRACE(layout.name());
    const ProbeResult result = train(layout, 0);
    EXPECT_TRUE(same_bits(result.parameters, one.parameters));
    expect_equal_replicas(result);
  }
  // No two drawn tensors are alike, in particular those of two layers.
  std::map<std::vector<float>, std::string> seen;
  for (const NamedTensor& tensor : one.parameters) {
    const std::vector<float> head(tensor.values.begin(), tensor.values.begin() + 8);
    if (std::equal(head.begin() + 1, head.end(), head.begin())) continue;  // norms and biases: constant
    EXPECT_TRUE(seen.emplace(head, tensor.name).second) << tensor.name << " begins as " << seen[head];
  }
  EXPECT_GE(seen.size(), 13u);
}

// Another seed: every drawn tensor differs, and so does the loss.
TEST_P(ShardingNeutrality, E52SeedHasAnEffect) {
  const ProbeResult one = train({.micro = 4}, 0, {"run.seed=1"}), two = train({.micro = 4}, 0, {"run.seed=2"});
  EXPECT_GT(std::abs(one.loss - two.loss), 1e-4);
  for (size_t t = 0; t < one.parameters.size(); ++t) {
    const std::vector<float>&a = one.parameters[t].values, &b = two.parameters[t].values;
    const bool constant = std::equal(a.begin() + 1, a.end(), a.begin());
    EXPECT_EQ(a == b, constant) << one.parameters[t].name;
  }
}

// Five steps under every level, with one unit reduction per step or per microbatch.
TEST_P(ShardingNeutrality, E54LevelAndAccumulationDoNotChangeTheWeights) {
  const ProbeResult one = train({.micro = 4}, 5, {"optimizer.lr=0.05"});
  EXPECT_LT(one.losses.back(), one.loss);
  for (const int zero : {0, 1, 2, 3}) {
    for (Layout layout : {Layout{.dp = 2, .micro = 2}, Layout{.dp = 2, .accumulation = 2}, Layout{.dp = 4},
                          Layout{.accumulation = 4}}) {
      layout.zero = zero;
      SCOPED_TRACE(layout.name());
      const ProbeResult result = train(layout, 5, {"optimizer.lr=0.05"});
      EXPECT_LT(largest_difference(result.parameters, one.parameters), kReordered);
      expect_equal_replicas(result);
    }
  }
}

// Decay reaches matrices only, wherever the shard's cuts are. SGD: w - lr (g + wd w). The first AdamW step, with
// m / (1 - beta1) = g and v / (1 - beta2) = g^2: w (1 - lr wd) - lr g / (|g| + eps).
TEST_P(ShardingNeutrality, E58DecayLeavesNormsAndBiasesAlone) {
  constexpr double kRate = 0.1, kDecay = 0.1, kEps = 1e-8;
  const ProbeResult before = train({.micro = 4}, 0);
  for (const std::string kind : {"sgd", "adamw"}) {
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(kind + " zero " + std::to_string(zero));
      const ProbeResult after = train({.dp = 4, .zero = zero}, 1,
                                      {"optimizer.kind=" + kind, "optimizer.lr=0.1", "optimizer.weight_decay=0.1"});
      int vectors = 0;
      for (size_t t = 0; t < after.parameters.size(); ++t) {
        const NamedTensor& tensor = after.parameters[t];
        const bool matrix = tensor.shape.size() > 1;
        vectors += !matrix;
        double worst = 0;
        for (size_t i = 0; i < tensor.values.size(); ++i) {
          const double w = before.parameters[t].values[i], g = after.gradients[t].values[i],
                       decay = matrix ? kDecay : 0;
          const double right =
              kind == "sgd" ? w - kRate * (g + decay * w) : w * (1 - kRate * decay) - kRate * g / (std::abs(g) + kEps);
          worst = std::max(worst, std::abs(tensor.values[i] - right) / std::max(1.0, std::abs(right)));
        }
        // A few roundings to fp32 each; without decay 1 % of a weight near 0.2 would be missing.
        EXPECT_LT(worst, 3e-7) << tensor.name;
      }
      EXPECT_GE(vectors, 7);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ShardingNeutrality, ::testing::ValuesIn(kTinyKinds),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace fivefold::testing
