// Closed forms of docs/memory.md.
#include "planner/ledger.h"

#include "planner/planner_testing.h"

namespace fivefold::test {
namespace {

// 16 bytes per parameter: 2 weights, 2 gradients, 4 master, 4 + 4 moments. Over 8 ranks ZeRO-1 divides master and
// moments: 4 + 12/8 = 5.5; ZeRO-2 also gradients: 2 + 14/8 = 3.75; ZeRO-3 all: 16/8 = 2. Padding: at most 256 elements
// a parameter and 2,048 a unit.
TEST(Ledger, DividesTheFiveBillsByLevel) {
  const ModelSpec model = named_model("llama-3-8b");
  const double parameters = 8'030'261'248;  // published
  const double expected[] = {16, 5.5, 3.75, 2};
  for (int zero = 0; zero <= 3; ++zero) {
    const auto bytes =
        static_cast<double>(state_bytes(build_inventory(model), resolved(model, {.dp = 8, .zero = zero})));
    EXPECT_NEAR(bytes / parameters, expected[zero], 1e-4) << zero;
  }
}

// Accumulation keeps gradients in fp32: 18 bytes, and 6 + 12/D under ZeRO-1.
TEST(Ledger, AccumulatesInFp32) {
  const ModelSpec model = named_model("llama-3-8b");
  const Inventory inventory = build_inventory(model);
  const double parameters = 8'030'261'248;
  EXPECT_NEAR(state_bytes(inventory, resolved(model, {.accumulation = 2})) / parameters, 18, 1e-4);
  EXPECT_NEAR(state_bytes(inventory, resolved(model, {.dp = 64, .zero = 1, .accumulation = 2})) / parameters,
              6 + 12.0 / 64, 1e-3);
}

// fp32 has no master copy: 4 weights, 4 gradients, 8 moments.
TEST(Ledger, KeepsNoMasterCopyInFp32) {
  const ModelSpec model = named_model("llama-3-8b");
  const Ledger ledger = ledger_of(model, {.compute = ComputeKind::kFp32});
  EXPECT_EQ(ledger.persistent[Account::kMaster], 0);
  EXPECT_EQ(ledger.persistent[Account::kParams], 4LL * 8'030'261'248);
}

// 4h + 2(a + 2k)d + 2ad + 4f + 4a + 8 with h 4096, a 32, k 8, d 128, f 14336: 16384 + 12288 + 8192 + 57344 + 136 =
// 94344, which is 23 h and the statistics.
TEST(Ledger, SavesTwentyThreeHiddenPerTokenOfLlama3) {
  const ModelSpec model = named_model("llama-3-8b");
  const Inventory inventory = build_inventory(model);
  EXPECT_EQ(saved_activation_bytes(model, inventory, resolved(model, {.sequence = 1})), 32 * 94344);
  EXPECT_EQ(94344 - 4 * 32 - 8, 23 * 4096);
}

// 2h a token and segment: 32 layers in segments of 1, 4 and 5.
TEST(Ledger, KeepsOneInputPerRecomputedSegment) {
  const ModelSpec model = named_model("llama-3-8b");
  const Inventory inventory = build_inventory(model);
  for (const auto& [every, segments] : {std::pair<int64_t, int64_t>{1, 32}, {4, 8}, {5, 7}})
    EXPECT_EQ(saved_activation_bytes(model, inventory, resolved(model, {.sequence = 1, .recompute_every = every})),
              segments * 2 * 4096);
}

// Gemma 3 has a norm behind each sublayer, whose statistics backward reads: its last operation runs again although the
// output is there already, and what it writes is dropped.
TEST(Ledger, RecomputesLayersThatEndWithANorm) {
  const ModelSpec model = named_model("gemma-3-1b");
  const Inventory inventory = build_inventory(model);
  const Ledger whole = predict_memory(model, inventory, resolved(model, {.accumulation = 2}));
  const Ledger again = predict_memory(model, inventory, resolved(model, {.accumulation = 2, .recompute_every = 1}));
  EXPECT_LT(again.peak[Account::kActivations], whole.peak[Account::kActivations]);
  EXPECT_EQ(again.persistent.total(), whole.persistent.total());
}

TEST(Ledger, ShortenedReplayEqualsTheWhole) {
  const ModelSpec model = named_model("demo-tiny");
  for (const int zero : {0, 1, 2, 3}) {
    const Layout layout{
        .dp = 4, .zero = zero, .micro = 2, .accumulation = 7, .sequence = 64, .recompute_every = zero % 2 * 2};
    const ResolvedConfig config = resolved(model, layout);
    const Inventory inventory = build_inventory(model);
    const Ledger whole = predict_memory(model, inventory, config);
    const Ledger shortened = predict_memory_shortened(model, inventory, config);
    EXPECT_EQ(shortened.peak_total, whole.peak_total) << zero;
    EXPECT_EQ(shortened.at_peak, whole.at_peak) << zero;
    EXPECT_EQ(shortened.persistent, whole.persistent) << zero;
  }
}

// Lines with formulas add up to the persistent ledger (RoPE tables, shared by all layers, are the rest of data).
TEST(Ledger, LinesAddUpToTheStates) {
  const ModelSpec model = named_model("llama-3-8b");
  const Inventory inventory = build_inventory(model);
  const ResolvedConfig config = resolved(model, {.dp = 8, .zero = 2});
  AccountBytes sum;
  for (const MemoryLine& line : memory_lines(model, inventory, config)) sum[line.account] += line.bytes;
  const Ledger ledger = predict_memory(model, inventory, config);
  for (const Account account :
       {Account::kParams, Account::kGrads, Account::kMaster, Account::kMoment1, Account::kMoment2})
    EXPECT_EQ(sum[account], ledger.persistent[account]) << to_string(account);
}

// GPT-2: the embeddings and the matrices in 8 bits, norms and the biases under 4096 elements in fp32 and named.
TEST(Ledger, ShowsWhat8BitStatesAre) {
  const ModelSpec model = named_model("gpt2");
  const Inventory inventory = build_inventory(model);
  ResolvedConfig config = resolved(model, {.dp = 4, .zero = 2});
  config.config.precision.optimizer_state = OptimizerStateKind::k8Bit;
  int64_t in_8bit = 0, in_fp32 = 0;
  for (const MemoryLine& line : memory_lines(model, inventory, config)) {
    if (line.account != Account::kMoment1) continue;
    if (line.name == "moment1: 8 bits") in_8bit = line.bytes;
    if (line.name != "moment1: fp32") continue;
    in_fp32 = line.bytes;
    for (const char* name : {"layers.*.qkv.bias", "layers.*.attention_norm.weight", "head.norm.bias"})
      EXPECT_NE(line.formula.find(name), std::string::npos) << line.formula;
    EXPECT_EQ(line.formula.find("qkv.weight"), std::string::npos) << line.formula;
  }
  // 124 M elements over 4 ranks. What stays in fp32: in each of 12 layers 2 norms x 2 x 768 and biases of 2304, 768,
  // 3072 and 768, 9984 together, for which each rank has room; of the head's two norm vectors, 6 blocks, a rank has at
  // most its shard of 2.
  EXPECT_NEAR(static_cast<double>(in_8bit), 124.3e6 / 4 * (1 + 4.0 / 256), 0.01 * 124.3e6 / 4);
  EXPECT_EQ(in_fp32, 4 * (12 * 9984 + 2 * 256));
  EXPECT_EQ(predict_memory(model, inventory, config).persistent[Account::kMoment1], in_8bit + in_fp32);
}

}  // namespace
}  // namespace fivefold::test
