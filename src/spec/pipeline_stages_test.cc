#include "spec/pipeline_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "spec/validate_test_models.h"

namespace fivefold {
namespace {

using test::dense_model;
using Layers = std::vector<int64_t>;

ParallelConfig pipeline(int pp, int vpp = 1, ScheduleKind schedule = ScheduleKind::k1F1B) {
  ParallelConfig parallel;
  parallel.pp = pp;
  parallel.vpp = vpp;
  parallel.schedule = schedule;
  return parallel;
}

// Every cut of `layers` into `stages`.
void for_each_cut(int64_t layers, int64_t stages, Layers& cut, const std::function<void(const Layers&)>& f) {
  if (stages == 1) {
    cut.push_back(layers);
    f(cut);
    cut.pop_back();
    return;
  }
  for (int64_t n = 0; n <= layers; ++n) {
    cut.push_back(n);
    for_each_cut(layers - n, stages - 1, cut, f);
    cut.pop_back();
  }
}

double slowest_rank(const ModelSpec& model, const ParallelConfig& parallel, const Layers& cut, int64_t sequence) {
  const std::vector<double> flops = stage_flops(model, cut, sequence);
  double slowest = 0;
  for (int rank = 0; rank < parallel.pp; ++rank) {
    double work = 0;
    for (int chunk = 0; chunk < parallel.vpp; ++chunk)
      work += flops[static_cast<size_t>(virtual_stage(placement_of(parallel), parallel.pp, rank, chunk))];
    slowest = std::max(slowest, work);
  }
  return slowest;
}

// hidden 4096, ffn 14336, 32 heads of 128, 8 KV heads: a layer multiplies 4096 x (6144 + 4096 + 3 x 14336) =
// 218,103,808 elements, and attention of 4,096 tokens is 32 x 128 x 4096 = 16,777,216 more. The head of 128,256 rows
// multiplies 4096 x 128,256 = 525,336,576: as much as 2.24 layers.
TEST(PipelineStages, FlopsOfStages) {
  const std::vector<double> flops = stage_flops(dense_model({.layers = 4}), {3, 1}, 4096);
  ASSERT_EQ(flops.size(), 2U);
  EXPECT_DOUBLE_EQ(flops[0], 6.0 * 3 * (218103808.0 + 16777216.0));
  EXPECT_DOUBLE_EQ(flops[1], 6.0 * (218103808.0 + 16777216.0) + 6.0 * 525336576.0);
}

// 32 layers on 4 ranks: 32 + 2.24 layers' work over 4 is 8.56 each. Somebody must have 9 or more, and with 9 nobody
// else needs more; of the even cuts the first rank, where most microbatches are in flight, gets the 8.
TEST(PipelineStages, TheHeadCountsAsLayers) {
  EXPECT_EQ(balanced_layers(dense_model(), pipeline(4), 4096), (Layers{8, 9, 9, 6}));
}

TEST(PipelineStages, BalancedIsTheBestOfAllCuts) {
  for (const int layers : {1, 3, 7, 10}) {
    const ModelSpec model = dense_model({.layers = layers});
    for (const int pp : {1, 2, 3, 4}) {
      const ParallelConfig parallel = pipeline(pp);
      const Layers balanced = balanced_layers(model, parallel, 1024);
      EXPECT_EQ(std::accumulate(balanced.begin(), balanced.end(), int64_t{0}), layers);
      const double found = slowest_rank(model, parallel, balanced, 1024);
      Layers cut;
      for_each_cut(layers, pp, cut,
                   [&](const Layers& other) { EXPECT_LE(found, slowest_rank(model, parallel, other, 1024)); });
    }
  }
}

// Several chunks a rank: moving layers finds the best here too.
TEST(PipelineStages, ChunksOfARankAreBalancedTogether) {
  const std::pair<ScheduleKind, int> cases[] = {{ScheduleKind::kInterleaved, 3}, {ScheduleKind::kZbv, 2}};
  for (const auto& [schedule, vpp] : cases) {
    for (const int layers : {6, 9, 13}) {
      const ModelSpec model = dense_model({.layers = layers});
      const ParallelConfig parallel = pipeline(2, vpp, schedule);
      const double found = slowest_rank(model, parallel, balanced_layers(model, parallel, 1024), 1024);
      double best = found;
      Layers cut;
      for_each_cut(layers, 2 * vpp, cut,
                   [&](const Layers& other) { best = std::min(best, slowest_rank(model, parallel, other, 1024)); });
      EXPECT_DOUBLE_EQ(found, best) << to_string(schedule) << " " << layers;
    }
  }
}

TEST(PipelineStages, AsTheConfigurationSays) {
  ParallelConfig parallel = pipeline(4);
  EXPECT_EQ(layers_per_stage(dense_model({.layers = 10}), parallel, 1024), (Layers{3, 3, 2, 2}));
  parallel.stages.cut = StageCut::kBalanced;
  EXPECT_EQ(layers_per_stage(dense_model(), parallel, 4096), (Layers{8, 9, 9, 6}));
  parallel.stages = {.cut = StageCut::kListed, .layers = {0, 5, 0, 5}};
  EXPECT_EQ(layers_per_stage(dense_model({.layers = 10}), parallel, 1024), (Layers{0, 5, 0, 5}));
}

// An empty stage in the middle holds no unit; embedding (unit 0) and head (unit 3) may stand alone.
TEST(PipelineStages, UnitsOfStages) {
  EXPECT_EQ(stage_units({0, 2, 0, 0}), (std::vector<StageUnits>{{0, 1}, {1, 3}, {3, 3}, {3, 4}}));
  EXPECT_EQ(stage_units({2}), (std::vector<StageUnits>{{0, 4}}));
}

TEST(PipelineStages, MicrobatchesThatAScheduleTakes) {
  EXPECT_EQ(least_microbatches(pipeline(4), 3), 3);
  EXPECT_EQ(least_microbatches(pipeline(4, 2, ScheduleKind::kInterleaved), 5), 8);
  EXPECT_EQ(least_microbatches(pipeline(4, 2, ScheduleKind::kDualPipeV), 5), 8);
  EXPECT_EQ(least_microbatches(pipeline(4, 2, ScheduleKind::kDualPipeV), 9), 9);
  EXPECT_EQ(least_microbatches(pipeline(1), 5), 5);
}

}  // namespace
}  // namespace fivefold
