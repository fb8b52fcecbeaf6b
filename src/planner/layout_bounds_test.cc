// Bounds are below predictions, and sums of tapes are the ledger, over all layouts of small spaces.
#include "planner/layout_bounds.h"

#include "planner/small_space_testing.h"

namespace fivefold::test {
namespace {

using fivefold::Layout;

struct Space {
  const char* name;
  SearchRequest request;
  int64_t global;
};

std::vector<Space> spaces() {
  const auto request = [](int layers, bool tied, int ranks, HardwareSpec hardware) {
    SearchRequest r{.model = small_model(layers, tied), .base = {}, .hardware = std::move(hardware)};
    r.rank_counts = {ranks};
    r.base.batch.sequence = 64;
    return r;
  };
  HardwareSpec slow_links = small_cluster(2);
  slow_links.node_link.bytes_per_s.value = 2e8;
  slow_links.network.bytes_per_s.value = 5e7;
  HardwareSpec quick_links = small_cluster(8);
  quick_links.node_link.bytes_per_s.value = 1e12;
  std::vector<Space> all;
  all.push_back({"four ranks", request(4, false, 4, small_cluster()), 8});
  all.push_back({"tied", request(5, true, 4, quick_links), 8});
  all.push_back({"slow links", request(4, false, 4, slow_links), 8});
  all.push_back({"deep", request(16, false, 2, slow_links), 8});
  all.push_back({"prefetch", request(8, false, 2, small_cluster(2)), 4});
  all.back().request.base.parallel.prefetch = 3;
  return all;
}

TEST(LayoutBounds, AreBelowEveryPrediction) {
  for (const Space& space : spaces()) {
    const SearchRequest& request = space.request;
    const Inventory inventory = build_inventory(request.model);
    PredictionMemo memo(request.model, inventory, request.hardware);
    PeakBytes peaks(memo);
    LayoutBounds bounds(memo, peaks);
    int layouts = 0;
    double tightest_seconds = 0, tightest_bytes = 0;
    for (const RunConfig& config : every_config(request, space.global, 8, [](const RunConfig&) { return true; })) {
      if (layouts++ % 7 > 0) continue;  // the spaces are large
      const EveryLayout layout = predicted(request, inventory, config);
      const auto work = bounds.work(layout.config);
      const double makespan = bounds.makespan(layout.config);
      const double seconds = bounds.seconds(layout.config, work, makespan);
      ASSERT_LE(makespan, layout.seconds) << space.name << ": " << layout_text(layout.config);
      ASSERT_LE(seconds, layout.seconds) << space.name << ": " << layout_text(layout.config);
      ASSERT_LE(bounds.seconds_unsharded(layout.config, work), layout.seconds) << layout_text(layout.config);
      ASSERT_LE(bounds.split_seconds(layout.config), layout.seconds) << layout_text(layout.config);
      const int64_t bytes = bounds.bytes(layout.config, bounds.held(layout.config)) +
                            outside_tensors(request.model, inventory, layout.config, request.hardware).bytes();
      ASSERT_LE(bytes, layout.peak) << space.name << ": " << layout_text(layout.config);
      tightest_seconds = std::max(tightest_seconds, seconds / layout.seconds);
      tightest_bytes = std::max(tightest_bytes, static_cast<double>(bytes) / static_cast<double>(layout.peak));
    }
    EXPECT_GT(layouts, 100) << space.name;
    printf("%s: %d layouts, bounds up to %.4f of the seconds and %.4f of the bytes\n", space.name, layouts,
           tightest_seconds, tightest_bytes);
  }
}

// The ledger replays buffer by buffer; the peak as one number must be the same on every pipeline rank.
TEST(PeakBytes, IsThePeakOfTheLedger) {
  for (const Space& space : spaces()) {
    const SearchRequest& request = space.request;
    const Inventory inventory = build_inventory(request.model);
    PredictionMemo memo(request.model, inventory, request.hardware);
    PeakBytes peaks(memo);
    int layouts = 0;
    for (const RunConfig& run : every_config(request, space.global, 8, [](const RunConfig&) { return true; })) {
      if (layouts++ % 31 > 0) continue;
      const ResolvedConfig config = *resolve(run, request.model);
      const auto programs = pipeline_programs(memo, config, config.num_microbatches);
      const std::vector<int> ranks = RankGrid::create(config.degrees)->group(GroupKind::kPp, 0);
      for (size_t i = 0; i < ranks.size(); ++i)
        ASSERT_EQ(peaks(config, ranks[i], programs[i]),
                  predict_memory(request.model, inventory, config, ranks[i]).peak_total)
            << space.name << ": " << layout_text(config) << ", rank " << ranks[i];
    }
  }
}

}  // namespace
}  // namespace fivefold::test
