// Optimizer states in 8 bits and bf16, and weights without a master copy: which parameter is stored how, that layouts
// keep it.
#include <gtest/gtest.h>

#include <cmath>

#include "base/integer.h"
#include "spec/sharding.h"
#include "support/predicted.h"
#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

ProbeRequest request_of(const ModelSpec& model, const Layout& layout, const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"optimizer.kind=adamw", "optimizer.lr=1e-3", "optimizer.weight_decay=0.1"};
  all.insert(all.end(), settings.begin(), settings.end());
  return tiny_request(model, ragged_batch(model, {16, 3, 0, 7}), layout, all);
}

// ---- E56 ----

// One linear of 6 x 1024 and a bias of 10 beside it in a flat buffer, by hand: 24 blocks, then one.
Unit unit_of_e56() {
  Unit unit;
  unit.name = "layers.0";
  for (const auto& [name, shape] :
       {std::pair<std::string, std::vector<int64_t>>{"layers.0.a.weight", {6, 1024}}, {"layers.0.a.bias", {10}}}) {
    ParameterEntry entry;
    entry.name = name;
    entry.shape = entry.whole_shape = shape;
    entry.parts = {{.name = name, .rows = shape[0]}};
    entry.offset = unit.aligned_numel;
    unit.numel += entry.numel();
    unit.aligned_numel += round_up(entry.numel(), kStateBlock);
    unit.parameters.push_back(entry);
  }
  return unit;
}

TEST(StateTypes, E56TypeFollowsFromTheWholeParameter) {
  const Unit unit = unit_of_e56();
  ASSERT_EQ(unit.aligned_numel, 25 * 256);
  for (const int64_t shards : {1, 2, 4}) {
    int64_t in_8bit = 0;
    for (int64_t shard = 0; shard < shards; ++shard) {
      const auto places = moment_places(unit, shards, shard);
      EXPECT_TRUE(places[0].in_8bit);
      EXPECT_FALSE(places[1].in_8bit);
      const ShardRange range = shard_range(unit, unit.parameters[0], shards, shard);
      EXPECT_EQ(range.begin % 256, 0);
      in_8bit += range.end - range.begin;
    }
    EXPECT_EQ(in_8bit, 6144);
  }
}

// Updates with the gradients of one rank of four rows, and of 2 and 4 ranks whose gradients are summed elsewhere: under
// SGD-like equality of the sums the states are the same, so parameters agree as far as the gradients do.
TEST(StateTypes, E56UpdatesAreTheSameUnderEveryShardCount) {
  const ModelSpec model = tiny_model_of_two_state_kinds();
  const auto run = [&](const Layout& layout) {
    ProbeRequest request = request_of(model, layout, {"precision.optimizer_state=8bit"});
    request.updates = 3;
    request.want_parameters = true;
    return probe(request);
  };
  // Replicated or sharded over the same four ranks: the same gradients to the bit, so the same parameters.
  const ProbeResult replicated = run({.dp = 4, .zero = 0});
  for (const int zero : {1, 2, 3}) {
    SCOPED_TRACE(zero);
    EXPECT_TRUE(same_bits(run({.dp = 4, .zero = zero}).parameters, replicated.parameters));
  }
  EXPECT_TRUE(same_bits(run({.dp = 4, .zero = 3, .shard_size = 2}).parameters, replicated.parameters));
  const ProbeResult one = run({.dp = 1, .zero = 0, .micro = 4});
  for (const Layout& layout : {Layout{.dp = 2, .zero = 3, .micro = 2}, Layout{.dp = 4, .zero = 2}})
    EXPECT_LT(largest_difference(run(layout).parameters, one.parameters), 1e-4) << layout.name();
}

// The matrices of an adapter of rank 64 (A: 64 x 64) are large enough, its small ones stay in fp32; the frozen base has
// no states. Bytes as predicted, updates as on a replicated adapter.
TEST(StateTypes, AdaptersHaveSmallStatesToo) {
  const ModelSpec model = tiny_model_of_two_state_kinds();
  for (const char* kind : {"lora", "qlora"}) {
    const auto run = [&](const Layout& layout) {
      SCOPED_TRACE(std::string(kind) + " " + layout.name());
      ProbeRequest request = request_of(
          model, layout, {std::string("method.kind=") + kind, "method.rank=64", "precision.optimizer_state=8bit"});
      request.updates = 3;
      request.want_parameters = true;
      const ProbeResult result = probe(request);
      expect_predicted(request.model, build_inventory(request.model), request, result);
      return result.parameters;
    };
    const std::vector<NamedTensor> replicated = run({.dp = 4, .zero = 0});
    for (const int zero : {1, 2, 3}) EXPECT_TRUE(same_bits(run({.dp = 4, .zero = zero}), replicated)) << kind << zero;
    run({.dp = 2, .zero = 3, .micro = 2, .tp = 2});
    run({.dp = 1, .zero = 0, .micro = 1, .accumulation = 4, .pp = 2});
  }
}

// ---- E59 ----

// Weights of exactly one type everywhere: the bits of a rounding depend on the weight's name and place, not on who
// holds it.
TEST(StateTypes, E59WeightsWithoutMasterRoundAlikeUnderEveryLayout) {
  const ModelSpec model = tiny_model_of_two_state_kinds();
  for (const char* states : {"fp32", "bf16", "8bit"}) {
    SCOPED_TRACE(states);
    const auto run = [&](Layout layout) {
      layout.compute = "bf16";
      ProbeRequest request = request_of(model, layout,
                                        {"precision.master=none", "precision.grads=fp32", "precision.reduce=auto",
                                         std::string("precision.optimizer_state=") + states});
      request.updates = 3;
      request.want_parameters = true;
      return probe(request);
    };
    const ProbeResult replicated = run({.dp = 4, .zero = 0, .accumulation = 2});
    EXPECT_LT(replicated.losses.back(), replicated.loss);
    for (const uint64_t hash : replicated.parameter_hashes) EXPECT_EQ(hash, replicated.parameter_hashes[0]);
    const ProbeResult sharded = run({.dp = 4, .zero = 1, .accumulation = 2});
    EXPECT_TRUE(same_bits(sharded.parameters, replicated.parameters));
  }
}

// Tensor parallelism and pipelines compute other roundings of the gradient, but the first update of AdamW is the sign
// of it: weights then differ only where the gradient is as small as its rounding. With other random bits about a third
// would.
TEST(StateTypes, E59RanksOfATensorGroupRoundByTheWholeParametersPlaces) {
  const ModelSpec model = tiny_model_of_two_state_kinds(131);
  const auto run = [&](Layout layout) {
    layout.compute = "bf16";
    ProbeRequest request = request_of(model, layout, {"precision.master=none", "precision.optimizer_state=8bit"});
    request.updates = 1;
    request.want_parameters = true;
    return probe(request).parameters;
  };
  const std::vector<NamedTensor> right = run({.dp = 1, .zero = 0, .micro = 4});
  for (const Layout& layout :
       {Layout{.dp = 1, .zero = 0, .micro = 4, .tp = 2}, Layout{.dp = 2, .zero = 3, .micro = 2, .tp = 4},
        Layout{.dp = 1, .zero = 0, .micro = 1, .accumulation = 4, .pp = 2}}) {
    SCOPED_TRACE(layout.name());
    const std::vector<NamedTensor> other = run(layout);
    for (size_t t = 0; t < right.size(); ++t) {
      int64_t equal = 0;
      const auto count = static_cast<int64_t>(right[t].values.size());
      for (size_t i = 0; i < right[t].values.size(); ++i) equal += other[t].values[i] == right[t].values[i];
      EXPECT_GT(static_cast<double>(equal), 0.95 * static_cast<double>(count)) << right[t].name;
    }
  }
}

// A learning rate at which rounding to nearest drops every update of a weight: the mean of what is kept is right.
TEST(StateTypes, E59UpdatesWithoutMasterFollowTheMaster) {
  const ModelSpec model = tiny_model_of_two_state_kinds();
  const auto moved = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> all = {"optimizer.lr=1e-5", "optimizer.weight_decay=0"};
    all.insert(all.end(), settings.begin(), settings.end());
    ProbeRequest request = request_of(model, {.dp = 2, .zero = 2, .micro = 2, .compute = "bf16"}, all);
    request.want_parameters = true;
    request.updates = 1;
    const std::vector<NamedTensor> before = probe(request).parameters;
    request.updates = 51;
    return std::pair(before, probe(request).parameters);
  };
  const auto [start, master] = moved({});
  const auto [rounded_start, none] = moved({"precision.master=none"});
  // Of all weights with a master copy that moved by 50 lr: how far the others went along the same way, on average.
  double along = 0, right = 0;
  for (size_t t = 0; t < start.size(); ++t) {
    for (size_t i = 0; i < start[t].values.size(); ++i) {
      const double wanted = master[t].values[i] - start[t].values[i];
      const double sign = wanted < 0 ? -1 : 1;
      right += sign * wanted;
      along += sign * (none[t].values[i] - rounded_start[t].values[i]);
    }
  }
  std::printf("without master: %.4f of the way\n", along / right);
  EXPECT_NEAR(along / right, 1, 0.02);
}

}  // namespace
}  // namespace fivefold::testing
