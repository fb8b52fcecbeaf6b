#include "planner/method_search.h"

#include "planner/planner_testing.h"
#include "spec/run_config_io.h"
#include "spec/validate.h"

namespace fivefold::test {
namespace {

std::vector<MethodKind> tried(const MethodSearch& search) {
  std::vector<MethodKind> kinds;
  for (const MethodResult& method : search.tried) kinds.push_back(method.request.base.method.kind);
  return kinds;
}

using Kinds = std::vector<MethodKind>;

// 8.03e9 parameters: 16 bytes each in full training, about 2 under LoRA, 0.52 under QLoRA; beside them a card has 0.5
// GiB of its own.
struct Case {
  int64_t limit;
  Kinds tried;
  bool fits;
};
const Case kCases[] = {{300'000'000'000, {MethodKind::kFull}, true},
                       {40'000'000'000, {MethodKind::kFull, MethodKind::kLora}, true},
                       {12'000'000'000, {MethodKind::kFull, MethodKind::kLora, MethodKind::kQlora}, true},
                       {4'000'000'000, {MethodKind::kFull, MethodKind::kLora, MethodKind::kQlora}, false}};

TEST(MethodSearch, GoesOnUntilAMethodFits) {
  for (const Case& c : kCases) {
    SearchRequest request = request_for("llama-3.1-8b", "h100-sxm-80gb", 1, 512);
    request.base.limits.memory = c.limit;
    const Result<MethodSearch> search = search_methods(request);
    ASSERT_TRUE(search.ok());
    EXPECT_EQ(tried(*search), c.tried) << c.limit;
    EXPECT_EQ(search->answer().fits(), c.fits) << c.limit;
    const MethodResult& answer = search->answer();
    EXPECT_EQ(answer.request.base.method.kind, c.fits ? c.tried.back() : MethodKind::kFull);
    for (const MethodResult& method : search->tried) {
      if (method.fits()) continue;
      EXPECT_EQ(method.result.smallest_capacity, c.limit);
      EXPECT_GT(method.result.smallest_peak, c.limit);
    }
    for (const Candidate& plan : answer.result.plans) {
      EXPECT_LE(plan.ledger.peak_total, c.limit);
      EXPECT_EQ(plan.config.config.method.kind, answer.request.base.method.kind);
      // As a file it is the same run, which the engine takes.
      const LoadedConfig written = parse_config(to_toml(plan.config.config), "plan.toml");
      EXPECT_EQ(to_string(written.errors), "");
      EXPECT_TRUE(written.config == plan.config.config);
      EXPECT_EQ(to_string(validate_engine(with_method(request.model, written.config.method), written.config)), "");
    }
  }
}

TEST(MethodSearch, LeavesAMethodThatIsSet) {
  for (const MethodKind kind : {MethodKind::kFull, MethodKind::kLora}) {
    SearchRequest request = request_for("llama-3.1-8b", "h100-sxm-80gb", 1, 512);
    request.base.limits.memory = 12'000'000'000;
    request.base.method.kind = kind;
    request.fixed.method = true;
    const Result<MethodSearch> search = search_methods(request);
    ASSERT_TRUE(search.ok());
    EXPECT_EQ(tried(*search), Kinds{kind});
    EXPECT_FALSE(search->answer().fits());
  }
}

// What the configuration says of an adapter counts, also where it is not the method that was asked for first.
TEST(MethodSearch, TakesTheAdapterOfTheConfiguration) {
  SearchRequest request = request_for("llama-3.1-8b", "h100-sxm-80gb", 1, 512);
  request.base.limits.memory = 40'000'000'000;
  request.base.method.rank = 4;
  const Result<MethodSearch> search = search_methods(request);
  ASSERT_TRUE(search.ok());
  ASSERT_TRUE(search->answer().fits());
  EXPECT_EQ(search->answer().result.plans[0].config.config.method.rank, 4);
  // A rank that is no rank of this model leaves only what was asked for.
  request.base.method.rank = 1 << 20;
  const Result<MethodSearch> none = search_methods(request);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(tried(*none), Kinds{MethodKind::kFull});
}

// Counts at which nothing fits are left out for the adapter, and make no difference.
TEST(MethodSearch, FindsTheFewestRanksOfTheAdapter) {
  SearchRequest request = request_for("llama-3.1-8b", "dgx-h100", 1, 512);
  request.rank_counts = {1, 2, 4};
  request.goal = SearchGoal::kFewestRanks;
  request.base.limits.memory = 12'000'000'000;
  const Result<MethodSearch> search = search_methods(request);
  ASSERT_TRUE(search.ok());
  ASSERT_EQ(tried(*search), (Kinds{MethodKind::kFull, MethodKind::kLora}));
  request.base.method.kind = MethodKind::kLora;
  const Result<SearchResult> lora = search_layouts(request);
  ASSERT_TRUE(lora.ok());
  ASSERT_FALSE(lora->plans.empty());
  EXPECT_GT(lora->plans[0].config.degrees.world(), 1);
  EXPECT_EQ(search->answer().result.plans[0].config.config, lora->plans[0].config.config);
}

TEST(MethodSearch, GivesTheSameTwice) {
  SearchRequest request = request_for("llama-3.2-1b", "dgx-h100", 2, 2048);
  request.base.limits.memory = 6'000'000'000;
  const Result<MethodSearch> first = search_methods(request), second = search_methods(request);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ(tried(*first), tried(*second));
  ASSERT_TRUE(first->answer().fits());
  EXPECT_EQ(first->answer().result.plans[0].config.config, second->answer().result.plans[0].config.config);
}

}  // namespace
}  // namespace fivefold::test
