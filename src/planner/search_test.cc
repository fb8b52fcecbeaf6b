#include "planner/search.h"

#include "planner/planner_testing.h"

namespace fivefold::test {
namespace {

TEST(Search, GivesTheSameTwice) {
  const SearchRequest request = request_for("llama-3.2-1b", "dgx-h100", 8, 2048);
  const auto first = search_layouts(request), second = search_layouts(request);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ(first->plans.size(), second->plans.size());
  for (size_t i = 0; i < first->plans.size(); ++i)
    EXPECT_EQ(first->plans[i].config.config, second->plans[i].config.config);
}

// What the bound drops would not have fitted: no layout's peak is below its states and saved activations.
TEST(Search, BoundIsBelowThePeak) {
  const ModelSpec model = named_model("llama-3.2-1b");
  const Inventory inventory = build_inventory(model);
  for (const int zero : {0, 1, 2, 3})
    for (const int64_t every : {0, 1, 4})
      for (const int64_t accumulation : {1, 2}) {
        const ResolvedConfig config = resolved(
            model, {.dp = 4, .zero = zero, .micro = 2, .accumulation = accumulation, .recompute_every = every});
        EXPECT_LE(state_bytes(inventory, config) + saved_activation_bytes(model, inventory, config),
                  predict_memory(model, inventory, config).peak_total);
      }
}

// No brute-force layout that fits is faster than 1 / 0.97 of the best plan.
TEST(Search, MissesNoFasterLayout) {
  SearchRequest request = request_for("llama-3.1-8b", "dgx-h100", 4, 4096, 32);
  const auto result = search_layouts(request);
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->plans.empty());
  const Inventory inventory = build_inventory(request.model);
  for (const int zero : {0, 1, 2, 3})
    for (const int64_t every : {0, 1, 2, 4, 8})
      for (const int64_t micro : {1, 2, 4, 8}) {
        const ResolvedConfig config = resolved(request.model, {.dp = 4,
                                                               .zero = zero,
                                                               .micro = micro,
                                                               .accumulation = 8 / micro,
                                                               .sequence = 4096,
                                                               .recompute_every = every});
        Ledger ledger = predict_memory(request.model, inventory, config);
        add_outside_tensors(ledger, config, request.hardware);
        if (ledger.peak_total > planned_capacity(config, request.hardware)) continue;
        const double tokens =
            config.tokens_per_step / predict_cost(request.model, inventory, config, request.hardware).seconds;
        EXPECT_LE(0.97 * tokens, result->plans[0].tokens_per_s * (1 + 1e-9)) << layout_text(config);
      }
}

TEST(Search, NamesTheObstacleAndTheSmallestFix) {
  const auto states = search_layouts(request_for("llama-3.1-8b", "rtx-4090", 2, 2048));
  ASSERT_TRUE(states.ok());
  EXPECT_TRUE(states->plans.empty());
  EXPECT_EQ(states->obstacle, Obstacle::kStates);
  ASSERT_FALSE(states->fixes.empty());
  // 16 B x 8.03e9 / 7 = 18.4 GB of states under 0.92 x 24 GB; over 6 cards 21.4 GB leave nothing for a layer.
  EXPECT_NE(states->fixes[0].change.find("7 devices instead of 2"), std::string::npos) << states->fixes[0].change;

  // Half a million tokens a sequence: 2 h x 32 layers x 524,288 tokens are 137 GB of inputs alone.
  SearchRequest request = request_for("llama-3.1-8b", "dgx-h100", 64, 131072);
  request.model.max_positions = 1 << 20;
  request.base.batch.sequence = 1 << 19;
  const auto activations = search_layouts(request);
  ASSERT_TRUE(activations.ok());
  EXPECT_TRUE(activations->plans.empty());
  EXPECT_NE(activations->obstacle, Obstacle::kStates);
}

// One layer of 405B: 3.19e9 parameters, 12.8 GB with their gradient: over 8 GB whatever is sharded.
TEST(Search, SaysWhenOneLayerIsTooLarge) {
  SearchRequest request = request_for("llama-3.1-405b", "dgx-h100", 1024, 1024);
  request.base.limits.memory = 8'000'000'000;
  const auto result = search_layouts(request);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->plans.empty());
  EXPECT_EQ(result->obstacle, Obstacle::kOneLayer);
}

TEST(Search, RefusesWhatTheEngineDoesNotHave) {
  SearchRequest request = request_for("llama-3.2-1b", "dgx-h100", 2, 1024);
  request.base.method.kind = MethodKind::kLora;
  EXPECT_EQ(search_layouts(request).error().where, "method.kind");
}

}  // namespace
}  // namespace fivefold::test
