#include "planner/profiles/framework_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/installation.h"
#include "planner/profiles/device_need.h"
#include "planner/profiles/framework_config.h"
#include "planner/profiles/published_error.h"
#include "spec/model_named.h"

namespace fivefold {
namespace {

HardwareSpec cluster(const char* name) {
  return read_hardware(std::filesystem::path(installation().configs) / "clusters" / (std::string(name) + ".toml"))
      .value();
}
ModelSpec named(const std::string& name) { return read_model_config(find_named_model(name).value()).value(); }

FrameworkRequest request(Framework framework, ModelSpec model, int64_t gpus, int64_t sequence = 4096) {
  RunConfig config;
  config.framework.name = framework;
  config.batch.sequence = sequence;
  if (framework == Framework::kFsdp2) config.parallel.zero = 3;
  FrameworkRequest request;
  request.hardware = cluster("dgx-h100");
  request.base = framework_run(model, config, request.hardware).value();
  request.gpus = gpus;
  return request;
}

ModelSpec small(int layers, bool experts) {
  ModelSpec model;
  model.hidden = 4096;
  model.vocab = 32000;
  LayerSpec layer;
  layer.mixer.num_heads = 32;
  layer.mixer.num_kv_heads = 8;
  layer.mixer.head_dim = 128;
  layer.mlp.ffn = 14336;
  if (experts) layer.mlp = {.kind = MlpKind::kMoe, .num_experts = 8, .experts_per_token = 2, .expert_ffn = 7168};
  model.layers.assign(static_cast<size_t>(layers), layer);
  return model;
}

// The fastest of all legal layouts that fit, each by itself, without bounds, and the simplest of those near it.
struct Every {
  double fastest = 0, chosen = 0;
  int64_t layouts = 0, fit = 0;
};
Every every(const FrameworkRequest& request, int64_t global, TensorReach reach = TensorReach::kNode) {
  const FrameworkSpace space(request.base, request.fixed, request.hardware, request.gpus, global, reach);
  FrameworkRun run = request.base;
  std::vector<std::pair<double, FrameworkLayout>> fitting;
  Every every;
  for (const FrameworkLayout& layout : space.layouts()) {
    ++every.layouts;
    space.apply(layout, run);
    if (needed_bytes(profile_memory(run)) > request.base.capacity_bytes) continue;
    fitting.emplace_back(framework_time(run, request.hardware).value().seconds, layout);
  }
  every.fit = static_cast<int64_t>(fitting.size());
  if (fitting.empty()) return every;
  every.fastest = std::ranges::min_element(fitting)->first;
  // Those that fit within the profile's error before those that may not.
  const auto order = [&](const FrameworkLayout& layout) {
    space.apply(layout, run);
    const double bytes = static_cast<double>(needed_bytes(profile_memory(run))) * (1 + published_error(run).memory);
    return std::tuple(bytes > static_cast<double>(request.base.capacity_bytes), simplicity(layout), layout);
  };
  const FrameworkLayout* simplest = nullptr;
  for (const auto& [seconds, layout] : fitting) {
    if (seconds > every.fastest / kEqualSpeed) continue;
    if (simplest == nullptr || order(layout) < order(*simplest)) simplest = &layout, every.chosen = seconds;
  }
  return every;
}

TEST(FrameworkSearch, FindsWhatBruteForceFinds) {
  int searched = 0;
  for (const Framework framework :
       {Framework::kMegatron, Framework::kNanotron, Framework::kFsdp2, Framework::kDeepspeed, Framework::kHf})
    for (const bool experts : {false, true})
      for (const int layers : {4, 7})
        for (const int64_t gpus : {1, 4, 8, 12, 16})
          for (const double memory : {20.0, 40.0, 80.0}) {
            FrameworkRequest asked = request(framework, small(layers, experts), gpus);
            asked.hardware.devices_per_node = 4;
            asked.base.capacity_bytes = static_cast<int64_t>(memory * 0x1p30);
            asked.global_batch = 2 * gpus;
            const Every all = every(asked, asked.global_batch);
            const FrameworkResult result = search_framework(asked).value();
            ++searched;
            if (all.fit == 0) {
              EXPECT_TRUE(result.smallest || all.layouts == 0 || !result.plans.empty());
              continue;
            }
            ASSERT_FALSE(result.plans.empty());
            EXPECT_DOUBLE_EQ(result.plans[0].time.seconds, all.chosen)
                << to_string(framework) << ' ' << experts << ' ' << layers << ' ' << gpus << ' ' << memory;
            EXPECT_LE(result.plans[0].needed, asked.base.capacity_bytes);
            EXPECT_EQ(result.bounds, all.layouts);
          }
  EXPECT_EQ(searched, 5 * 2 * 2 * 5 * 3);
}

// Llama-3.1-405B on 16,384 H100s: every layout is bounded, few are looked at more closely, and the best fits.
TEST(FrameworkSearch, PlansTheLargestRun) {
  FrameworkRequest asked = request(Framework::kMegatron, named("llama-3.1-405b"), 16384, 8192);
  asked.global_batch = 2048;
  const FrameworkResult result = search_framework(asked).value();
  ASSERT_FALSE(result.plans.empty());
  const FrameworkPlan& best = result.plans[0];
  EXPECT_TRUE(best.fits());
  EXPECT_EQ(best.layout.tp, 8);  // as it was trained (Llama Team, "The Llama 3 Herd of Models", 2024, table 4)
  EXPECT_GE(best.layout.pp, 8);
  EXPECT_NEAR(best.time.mfu, 0.40, 0.08);  // 38 to 43 % there
  EXPECT_GT(result.bounds, 5000);
  EXPECT_LT(result.replayed, 200);
  for (size_t i = 1; i < result.plans.size(); ++i)
    EXPECT_GE(result.plans[i].time.seconds, kEqualSpeed * best.time.seconds);
}

TEST(FrameworkSearch, KeepsWhatIsFixed) {
  FrameworkRequest asked = request(Framework::kMegatron, named("llama-3.1-8b"), 16);
  asked.fixed.tp = asked.fixed.pp = asked.fixed.recompute = true;
  asked.base.tp = 4, asked.base.pp = 2, asked.base.checkpointing = Checkpointing::kFull;
  const FrameworkResult result = search_framework(asked).value();
  EXPECT_FALSE(result.plans.empty());
  for (const FrameworkPlan& plan : result.plans) {
    EXPECT_EQ(plan.layout.tp, 4);
    EXPECT_EQ(plan.layout.pp, 2);
    EXPECT_EQ(plan.layout.checkpointing, Checkpointing::kFull);
  }
  asked.base.tp = 5;
  EXPECT_FALSE(search_framework(asked).ok());
}

// 8 x 80 GB hold no 405B: the smallest is named.
TEST(FrameworkSearch, NamesTheSmallestWhereNothingFits) {
  const FrameworkResult result =
      search_framework(request(Framework::kMegatron, named("llama-3.1-405b"), 8, 8192)).value();
  EXPECT_TRUE(result.plans.empty());
  ASSERT_TRUE(result.smallest.has_value());
  // Weights and fp32 gradients over 8 GPUs at the least: 6 B x 405.85e9 / 8.
  EXPECT_GT(result.smallest->needed, static_cast<int64_t>(6 * 405.85e9 / 8));
  EXPECT_FALSE(result.smallest->fits());
}

TEST(FrameworkSearch, DividesLayersAmongStages) {
  const auto sum = [](const std::vector<int64_t>& v) { return std::accumulate(v.begin(), v.end(), int64_t{0}); };
  // Llama 3: the first and the last stage have a layer less.
  const std::vector<int64_t> llama = stage_layers(126, 16, 8, EndsCount::kBoth);
  EXPECT_EQ(std::count(llama.begin(), llama.end(), 1), 126);
  EXPECT_EQ(llama.front() + llama.back(), 0);
  EXPECT_EQ(sum(stage_layers(126, 16, 8, EndsCount::kBoth)), 126);
  EXPECT_TRUE(stage_layers(126, 16, 1, EndsCount::kNothing).empty());
  EXPECT_EQ(sum(stage_layers(61, 8, 2, EndsCount::kUneven)), 61);
  EXPECT_TRUE(stage_layers(64, 8, 2, EndsCount::kUneven).empty());  // even
}

TEST(FrameworkSearch, ChoosesABatchByTheCluster) {
  EXPECT_EQ(chosen_global_batch(8, 4096), 128);       // 2^19 tokens
  EXPECT_EQ(chosen_global_batch(16384, 8192), 2048);  // 2^24: what Llama 3 ended with
  EXPECT_EQ(chosen_global_batch(24, 4096) % 3, 0);
}

}  // namespace
}  // namespace fivefold
