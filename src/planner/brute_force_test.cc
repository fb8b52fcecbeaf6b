// The search against every layout of small spaces, each predicted by itself: the same optimum.
#include "planner/small_space_testing.h"

namespace fivefold::test {
namespace {

// What search.h documents, said again: of what is within 3 % of the fastest that fits, the simplest; then the fastest.
std::vector<int64_t> how_simple(const RunConfig& config) {
  static const std::vector<ScheduleKind> kOrder{ScheduleKind::k1F1B,        ScheduleKind::kGPipe, ScheduleKind::kNaive,
                                                ScheduleKind::kInterleaved, ScheduleKind::kZb1p,  ScheduleKind::kZbv,
                                                ScheduleKind::kZb2p,        ScheduleKind::kVHalf, ScheduleKind::kVMin,
                                                ScheduleKind::kDualPipeV};
  const ParallelConfig& p = config.parallel;
  return {(p.tp > 1) + (p.cp > 1) + (p.pp > 1),
          p.pp,
          p.cp,
          p.tp,
          config.recompute.kind == RecomputeKind::kFull ? 100 : std::ssize(config.recompute.tensors),
          p.zero,
          config.batch.micro,
          -p.shard_size,
          p.sp,
          p.pp > 1 ? std::find(kOrder.begin(), kOrder.end(), p.schedule) - kOrder.begin() : 0,
          p.vpp};
}

const EveryLayout* best_of(const std::vector<EveryLayout>& all, int64_t capacity, int64_t most_tp) {
  const auto counts = [&](const EveryLayout& l) {
    return l.peak <= capacity && l.config.config.parallel.tp <= most_tp;
  };
  const EveryLayout* fastest = nullptr;
  for (const EveryLayout& layout : all)
    if (counts(layout) && (fastest == nullptr || layout.seconds < fastest->seconds)) fastest = &layout;
  const EveryLayout* best = nullptr;
  for (const EveryLayout& layout : all) {
    if (fastest == nullptr || !counts(layout) || layout.seconds > fastest->seconds / 0.97) continue;
    const auto key = [](const EveryLayout& l) { return std::pair(how_simple(l.config.config), l.seconds); };
    if (best == nullptr || key(layout) < key(*best)) best = &layout;
  }
  return best;
}

// At memory limits from below what anything needs to above what everything needs.
template <typename Keep>
void expect_the_same_best(SearchRequest request, int64_t global, const Keep& keep) {
  const Inventory inventory = build_inventory(request.model);
  request.base.batch.global = global;
  std::vector<EveryLayout> all;
  std::vector<int64_t> peaks;
  for (const RunConfig& config : every_config(request, global, request.rank_counts[0], keep)) {
    all.push_back(predicted(request, inventory, config));
    peaks.push_back(all.back().peak);
  }
  ASSERT_GT(all.size(), 20u);
  std::sort(peaks.begin(), peaks.end());
  const size_t n = peaks.size();
  std::set<std::string> plans;
  for (const int64_t limit : {peaks[0] - 1, peaks[0], peaks[n / 50], peaks[n / 20], peaks[n / 10], peaks[n / 4],
                              peaks[n / 2], peaks[n - 1]}) {
    request.base.limits.memory = limit;
    const auto result = search_layouts(request);
    ASSERT_TRUE(result.ok()) << result.error().message();
    // tp leaves the node only if nothing else fits.
    const EveryLayout* best = best_of(all, limit, request.hardware.devices_per_node);
    if (best == nullptr) best = best_of(all, limit, request.rank_counts[0]);
    ASSERT_EQ(result->plans.empty(), best == nullptr) << limit;
    if (best == nullptr) continue;
    const Candidate& plan = result->plans[0];
    EXPECT_EQ(how_simple(plan.config.config), how_simple(best->config.config))
        << limit << ": " << layout_text(plan.config) << ", expected " << layout_text(best->config);
    EXPECT_DOUBLE_EQ(plan.cost.seconds, best->seconds) << limit << ": " << layout_text(plan.config);
    EXPECT_LE(plan.ledger.peak_total, limit);
    EXPECT_LT(result->replayed, static_cast<int64_t>(all.size()));
    plans.insert(layout_text(plan.config));
  }
  printf("%zu layouts, %zu different plans\n", n, plans.size());
}

SearchRequest small_request(int layers, int ranks, HardwareSpec hardware, bool tied = false) {
  SearchRequest request{.model = small_model(layers, tied), .base = {}, .hardware = std::move(hardware)};
  request.rank_counts = {ranks};
  request.base.batch.sequence = 64;
  return request;
}

const auto kAll = [](const RunConfig&) { return true; };

TEST(BruteForce, FourRanksOfOneNode) { expect_the_same_best(small_request(4, 4, small_cluster()), 4, kAll); }

TEST(BruteForce, TwoNodes) { expect_the_same_best(small_request(4, 4, small_cluster(2)), 4, kAll); }

TEST(BruteForce, TiedEmbeddingsAndUnevenStages) {
  expect_the_same_best(small_request(5, 4, small_cluster(), true), 4, kAll);
}

// The network is so slow that what is sent decides.
TEST(BruteForce, SlowLinks) {
  HardwareSpec hardware = small_cluster(2);
  hardware.node_link.bytes_per_s.value = 2e8;
  hardware.network.bytes_per_s.value = 2e7;
  expect_the_same_best(small_request(4, 4, hardware), 4, kAll);
}

TEST(BruteForce, EightRanksWithFixedKeys) {
  SearchRequest request = small_request(8, 8, small_cluster());
  request.fixed = {.zero = true, .micro = true, .recompute = true};
  request.base.parallel.zero = 2;
  expect_the_same_best(request, 8, [](const RunConfig& config) {
    return config.parallel.zero == 2 && config.batch.micro == 1 && config.recompute.kind == RecomputeKind::kNone;
  });
}

// Three ranks divide neither the four heads nor, tied, the stages evenly; six have tp = 2 only.
TEST(BruteForce, SixRanks) {
  SearchRequest request = small_request(6, 6, small_cluster(6));
  request.fixed = {.cp = true, .recompute = true, .every = true};
  request.base.recompute = {.kind = RecomputeKind::kFull, .every = 2, .tensors = {}};
  expect_the_same_best(request, 6, [](const RunConfig& config) {
    return config.parallel.cp == 1 && config.recompute.kind == RecomputeKind::kFull && config.recompute.every == 2;
  });
}

// Without memory limits and with many microbatches pipelines are worth their while between nodes.
TEST(BruteForce, DeepPipelines) {
  HardwareSpec hardware = small_cluster(1);
  hardware.network.bytes_per_s.value = 1e8;
  SearchRequest request = small_request(8, 4, hardware);
  request.fixed = {.cp = true, .shard_size = true, .recompute = true};
  expect_the_same_best(request, 16, [](const RunConfig& config) {
    const ParallelConfig& p = config.parallel;
    return p.cp == 1 && config.recompute.kind == RecomputeKind::kNone && (p.zero == 0 || p.shard_size == p.dp * p.cp);
  });
}

}  // namespace
}  // namespace fivefold::test
