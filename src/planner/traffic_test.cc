// Closed forms of docs/communication.md.
#include "planner/traffic.h"

#include "planner/planner_testing.h"

namespace fivefold::test {
namespace {

int64_t sent(const ModelSpec& model, const Layout& layout) {
  int64_t bytes = 0;
  for (const TrafficLine& line : predict_traffic(model, build_inventory(model), resolved(model, layout)))
    if (line.purpose == Purpose::kGradients || line.purpose == Purpose::kParameters) bytes += line.bytes;
  return bytes;
}

constexpr double kParameters = 8'030'261'248;  // Llama-3-8B

// 2 (n-1)/n x N x 2 bytes whatever the level below 3.
TEST(Traffic, LevelsZeroToTwoSendTheSame) {
  const ModelSpec model = named_model("llama-3-8b");
  for (const int zero : {0, 1, 2})
    EXPECT_NEAR(static_cast<double>(sent(model, {.dp = 8, .zero = zero})) / kParameters, 2 * 7.0 / 8 * 2, 1e-3) << zero;
}

// Two gathers and one reduce-scatter: 1.5 times. Embedding and head, each 525,336,576 + 4096 elements at the most, are
// gathered once: backward does not read the embedding, and the head's forward and backward are one instruction.
TEST(Traffic, LevelThreeSendsHalfAsMuchAgain) {
  const ModelSpec model = named_model("llama-3-8b");
  const double once = 2 * 525'336'576.0;
  const double volume = static_cast<double>(sent(model, {.dp = 8, .zero = 3})) / (7.0 / 8 * 2);
  EXPECT_NEAR(volume / kParameters, (2 * kParameters + (kParameters - once)) / kParameters, 1e-3);
  EXPECT_NEAR(volume / (3 * kParameters - once), 1.0, 1e-3);
}

// Independent of the batch, but per microbatch at level 3.
TEST(Traffic, DoesNotGrowWithTheBatchButWithMicrobatches) {
  const ModelSpec model = named_model("llama-3-8b");
  EXPECT_EQ(sent(model, {.dp = 8, .zero = 2, .micro = 4}), sent(model, {.dp = 8, .zero = 2}));
  EXPECT_GT(sent(model, {.dp = 8, .zero = 3, .accumulation = 2}), 19 * sent(model, {.dp = 8, .zero = 3}) / 10);
}

// Shards over 8 of 32 ranks: reduce-scatter and gather over 8, and an all-reduce of the shard over the 4 replicas:
// 7/8 + 7/8 + 2 x 3/4 / 8 elements a parameter, 2 bytes each.
TEST(Traffic, HybridShardingAllReducesTheShard) {
  const ModelSpec model = named_model("llama-3-8b");
  EXPECT_NEAR(static_cast<double>(sent(model, {.dp = 32, .zero = 2, .shard_size = 8})) / kParameters,
              2 * (7.0 / 8 + 7.0 / 8 + 2 * 3.0 / 4 / 8), 1e-3);
}

TEST(Traffic, OneRankSendsNothing) { EXPECT_EQ(sent(named_model("demo-tiny"), {.sequence = 64}), 0); }

}  // namespace
}  // namespace fivefold::test
