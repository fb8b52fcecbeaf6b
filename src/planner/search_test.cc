#include "planner/search.h"

#include "planner/planner_testing.h"
#include "spec/validate.h"

namespace fivefold::test {
namespace {

TEST(Search, GivesTheSameTwice) {
  const SearchRequest request = request_for("llama-3.2-1b", "dgx-h100", 16, 2048);
  const auto first = search_layouts(request), second = search_layouts(request);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ(first->plans.size(), second->plans.size());
  for (size_t i = 0; i < first->plans.size(); ++i)
    EXPECT_EQ(first->plans[i].config.config, second->plans[i].config.config);
  EXPECT_EQ(first->evaluated, second->evaluated);
  EXPECT_EQ(first->replayed, second->replayed);
  ASSERT_EQ(first->rejected.size(), second->rejected.size());
  for (size_t i = 0; i < first->rejected.size(); ++i) {
    EXPECT_EQ(first->rejected[i].config->config, second->rejected[i].config->config);
    EXPECT_EQ(first->rejected[i].reason, second->rejected[i].reason);
  }
}

// Of whatever plans and rejections.
TEST(Search, ProposesNothingThatIsNotLegalOrThatTheEngineRefuses) {
  for (const int ranks : {6, 8, 12}) {
    SearchRequest request = request_for("qwen2.5-0.5b", "dgx-h100", ranks, 1024, 24);  // 14 heads, 2 KV heads
    request.max_plans = 20;
    // A copy in another type for the wire is refused at some ZeRO levels.
    if (ranks == 8) request.base.precision.reduce = DType::kBFloat16;
    const auto result = search_layouts(request);
    ASSERT_TRUE(result.ok());
    ASSERT_EQ(result->plans.size(), 20u);
    for (const Candidate& plan : result->plans) {
      const RunConfig& config = plan.config.config;
      EXPECT_EQ(to_string(validate_layout(request.model, config)), "") << layout_text(plan.config);
      EXPECT_EQ(to_string(validate_engine(request.model, config)), "") << layout_text(plan.config);
      EXPECT_EQ(plan.config.degrees.world(), ranks);
    }
    for (const Rejection& rejection : result->rejected)
      EXPECT_EQ(to_string(validate_layout(request.model, rejection.config->config)), "")
          << layout_text(*rejection.config);
  }
}

TEST(Search, LeavesFixedKeysAsTheyAre) {
  SearchRequest request = request_for("llama-3.1-8b", "dgx-h100", 8, 4096, 64);
  request.fixed = {.tp = true, .sp = true, .pp = true, .schedule = true, .micro = true};
  request.base.parallel.tp = 2;
  request.base.parallel.sp = true;
  request.base.parallel.pp = 2;
  request.base.parallel.schedule = ScheduleKind::kGPipe;
  request.base.batch.micro = 2;
  const auto result = search_layouts(request);
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->plans.empty());
  for (const Candidate& plan : result->plans) {
    const RunConfig& config = plan.config.config;
    EXPECT_EQ(config.parallel.tp, 2);
    EXPECT_TRUE(config.parallel.sp);
    EXPECT_EQ(config.parallel.pp, 2);
    EXPECT_EQ(config.parallel.schedule, ScheduleKind::kGPipe);
    EXPECT_EQ(config.batch.micro, 2);
    EXPECT_EQ(config.parallel.dp * config.parallel.cp, 2);
  }
  EXPECT_EQ(fixed_text(request.fixed, request.base),
            (std::vector<std::string>{"parallel.tp = 2", "parallel.sp = true", "parallel.pp = 2",
                                      "parallel.schedule = gpipe", "batch.micro = 2"}));
}

TEST(Search, SaysThatNoLayoutHasTheFixedKeys) {
  SearchRequest request = request_for("llama-3.1-8b", "dgx-h100", 8, 4096, 64);
  request.fixed = {.dp = true, .tp = true};
  request.base.parallel.dp = 3;
  request.base.parallel.tp = 2;
  const auto result = search_layouts(request);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().where, "parallel");
  EXPECT_EQ(result.error().problem, "no layout of 8 ranks has parallel.dp = 3, parallel.tp = 2");
}

// A batch that eight replicas do not divide, but four do, over two ranks each.
TEST(Search, SplitsTheModelWhereTheBatchIsSmallerThanTheRanks) {
  const auto result = search_layouts(request_for("llama-3.1-8b", "dgx-h100", 8, 4096, 4));
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->plans.empty());
  EXPECT_LE(result->plans[0].config.config.parallel.dp, 4);
  EXPECT_EQ(result->rejected[0].kind, "no split");
  EXPECT_FALSE(result->rejected[0].config);
  EXPECT_EQ(result->rejected[0].fix, "use 8");
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
  request.fixed = {.tp = true, .cp = true, .pp = true};
  const auto activations = search_layouts(request);
  ASSERT_TRUE(activations.ok());
  EXPECT_TRUE(activations->plans.empty());
  EXPECT_NE(activations->obstacle, Obstacle::kStates);
  // A sequence over several ranks fits.
  request.fixed = {};
  const auto split = search_layouts(request);
  ASSERT_TRUE(split.ok());
  ASSERT_FALSE(split->plans.empty());
  EXPECT_GT(split->plans[0].config.config.parallel.cp * split->plans[0].config.config.parallel.tp, 1);
}

// One layer of 405B: 3.19e9 parameters, 12.8 GB with their gradient: over 11 GB whatever is sharded. A tensor group of
// eight has 1.6 GB of it. Four layers with embedding and head are 17e9 parameters, 16 x 17e9 / 64 = 4.3 GB of states.
TEST(Search, SplitsALayerThatIsTooLarge) {
  SearchRequest request = request_for("llama-3.1-405b", "dgx-h100", 64, 1024);
  request.model.layers.resize(4);
  request.base.limits.memory = 11'000'000'000;
  request.fixed = {.tp = true, .cp = true};
  const auto whole = search_layouts(request);
  ASSERT_TRUE(whole.ok());
  EXPECT_TRUE(whole->plans.empty());
  EXPECT_EQ(whole->obstacle, Obstacle::kOneLayer);
  const auto keys = std::find_if(whole->fixes.begin(), whole->fixes.end(), [](const Fix& fix) {
    return fix.change.starts_with("parallel.tp = 1, parallel.cp = 1 left to the search (");
  });
  EXPECT_NE(keys, whole->fixes.end());

  request.fixed = {};
  const auto result = search_layouts(request);
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->plans.empty());
  const Candidate& plan = result->plans[0];
  EXPECT_GT(plan.config.config.parallel.tp, 1) << layout_text(plan.config);
  EXPECT_LE(plan.ledger.peak_total, request.base.limits.memory);
  for (const Rejection& rejection : result->rejected)
    if (rejection.kind == "no split") {
      EXPECT_NE(rejection.reason.find("does not fit"), std::string::npos) << rejection.reason;
    }
}

// Kinds of splits, then ZeRO levels at the plan's splits; neither the plan's own.
TEST(Search, SaysWhyEachKindLoses) {
  const auto result = search_layouts(request_for("llama-3.1-8b", "dgx-h100", 8, 4096));
  ASSERT_TRUE(result.ok());
  std::vector<std::string> kinds;
  for (const Rejection& rejection : result->rejected) kinds.push_back(rejection.kind);
  const ParallelConfig& best = result->plans[0].config.config.parallel;
  ASSERT_EQ(best.tp * best.cp * best.pp, 1);
  ASSERT_GE(best.zero, 2);
  EXPECT_EQ(kinds, (std::vector<std::string>{"tp only", "pp only", "cp only", "tp and pp", "cp with tp or pp", "ZeRO-0",
                                             "ZeRO-1", best.zero == 2 ? "ZeRO-3" : "ZeRO-2"}));
  EXPECT_GT(result->evaluated, result->replayed);
}

TEST(Search, RefusesWhatTheEngineDoesNotHave) {
  SearchRequest request = request_for("llama-3.2-1b", "dgx-h100", 2, 1024);
  request.base.parallel.ep = 2;
  EXPECT_EQ(search_layouts(request).error().where, "parallel.ep");
}

// 8 B parameters: 16 bytes each in full; with an adapter 2 each and the adapter's 16, or about 0.52 and those.
TEST(Search, AnAdapterFitsWhereFullTrainingDoesNot) {
  SearchRequest request = request_for("llama-3.1-8b", "rtx-4090", 1, 512);
  const auto states = [&](MethodKind kind) {
    request.base.method.kind = kind;
    const Result<SearchResult> result = search_layouts(request);
    if (!result.ok() || result->plans.empty()) return int64_t{0};
    const AccountBytes& bytes = result->plans[0].ledger.persistent;
    return bytes[Account::kParams] + bytes[Account::kMaster] + bytes[Account::kMoment1] + bytes[Account::kMoment2];
  };
  EXPECT_EQ(states(MethodKind::kFull), 0);
  EXPECT_NEAR(static_cast<double>(states(MethodKind::kLora)), 8.03e9 * 2 + 42e6 * 14, 0.2e9);
  // Token table and output matrix stay in bf16.
  const double tables = 2 * 128256.0 * 4096;
  EXPECT_NEAR(static_cast<double>(states(MethodKind::kQlora)), (8.03e9 - tables) * 0.516 + tables * 2 + 42e6 * 14,
              0.1e9);
}

}  // namespace
}  // namespace fivefold::test
