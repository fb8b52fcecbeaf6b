// Reports of users of other tools, as tests: bytes of a model's states. The number in a test's comment is the report's
// in docs/planner_cases.md; figures are those that the report states or that follow from it by the sum shown.
#include "planner/cases_testing.h"

namespace fivefold::test {
namespace {

// P01, llm.c#309: GPT-2 124M with the vocabulary padded to 50,304: 124,475,904 parameters, 237 MiB of bf16 weights and
// of gradients, 474 MiB for each moment; with ZeRO-1 on 8 ranks only the moments fall.
TEST(Cases, Gpt2StatesToTheMebibyte) {
  ModelSpec model = named_model("gpt2");
  model.vocab = 50304;
  EXPECT_EQ(build_inventory(model).num_parameters(), 124'475'904);
  const Ledger one = ledger_of(model, {}), eight = ledger_of(model, {.dp = 8, .zero = 1});
  EXPECT_NEAR(one.persistent[Account::kParams] / kMib, 237.4, 0.005 * 237.4);
  EXPECT_NEAR(one.persistent[Account::kGrads] / kMib, 237.4, 0.005 * 237.4);
  EXPECT_NEAR(one.persistent[Account::kMoment1] / kMib, 474.8, 0.005 * 474.8);
  EXPECT_NEAR(one.persistent[Account::kMoment2] / kMib, 474.8, 0.005 * 474.8);
  EXPECT_NEAR(one.persistent[Account::kMaster] / kMib, 474.8, 0.005 * 474.8);
  EXPECT_NEAR(eight.persistent[Account::kMoment1] / kMib, 59.4, 0.005 * 59.4);
  EXPECT_NEAR(eight.persistent[Account::kMoment2] / kMib, 59.4, 0.005 * 59.4);
  EXPECT_NEAR(eight.persistent[Account::kParams] / kMib, 237.4, 0.005 * 237.4);
  EXPECT_NEAR(eight.persistent[Account::kGrads] / kMib, 237.4, 0.005 * 237.4);
}

// P02, Megatron-LM#654: 18 bytes with fp32 gradients; its distributed optimizer leaves 6 + 12/d. 7B: 121.3, 50.5,
// 41.7 GB. In fivefold's own plan, and in the profile, which says which gradients it assumed.
TEST(Cases, EighteenBytesWithGradientsInFp32) {
  const ModelSpec model = named_model("llama-2-7b");
  const Inventory inventory = build_inventory(model);
  FrameworkRun run = run_of(Framework::kMegatron, model, "a100-sxm-80gb");
  run.zero = 1;
  run.sequence = 2048;
  for (const auto& [dp, gigabytes] : {std::pair{1, 121.3}, {8, 50.5}, {64, 41.7}}) {
    EXPECT_NEAR(state_bytes(inventory, resolved(model, {.dp = dp, .zero = 1, .accumulation = 2})) / 1e9, gigabytes,
                0.01 * gigabytes);
    run.dp = dp;
    EXPECT_NEAR(static_gb(run), gigabytes, 0.01 * gigabytes);
  }
  run.dp = 1 << 20;
  EXPECT_GT(static_gb(run), 6 * 6.738);
  EXPECT_TRUE(std::ranges::count(profile_memory(run).assumed, "gradients: fp32"));
}

// P03, DeepSpeed#5099: 2,851 M parameters, 8 GPUs, ZeRO-2: 2 P + 14 P / 8 = 9.96 GiB with bf16 gradients, 10.62 with
// fp32 ones; 15.93, as printed, counted gradients as not divided (4 P + 16 P / 8). The model has 2,851.8 M parameters.
TEST(Cases, ZeroTwoItemised) {
  const ModelSpec model = llama({26, 2560, 20, 20, 10048, 32000});
  const Inventory inventory = build_inventory(model);
  ASSERT_NEAR(parameters(model) / 2851e6, 1, 0.001);
  const ResolvedConfig config = resolved(model, {.dp = 8, .zero = 2});
  EXPECT_NEAR(state_bytes(inventory, config) / kGib, 9.96, 0.02);
  EXPECT_NEAR(state_bytes(inventory, resolved(model, {.dp = 8, .zero = 2, .accumulation = 2})) / kGib, 10.62, 0.02);
  double weights = 0, rest = 0;
  for (const MemoryLine& line : memory_lines(model, inventory, config)) {
    EXPECT_FALSE(line.formula.empty()) << line.name;
    if (line.account == Account::kParams) weights += static_cast<double>(line.bytes);
    if (line.account == Account::kGrads || line.account == Account::kMaster || line.account == Account::kMoment1 ||
        line.account == Account::kMoment2)
      rest += static_cast<double>(line.bytes);
  }
  EXPECT_NEAR(weights / kGib, 2 * 2851e6 / kGib, 0.01);
  EXPECT_NEAR(rest / kGib, 14 * 2851e6 / 8 / kGib, 0.01);
}

// The same by DeepSpeed's profile: steady state, and what its implementation has beside it, each a line.
TEST(Cases, ZeroTwoItemisedOfDeepspeed) {
  FrameworkRun run = run_of(Framework::kDeepspeed, llama({26, 2560, 20, 20, 10048, 32000}), "a100-sxm-80gb");
  run.dp = 8;
  run.zero = 2;
  run.sequence = 1024;
  const ProfileMemory memory = profile_memory(run);
  EXPECT_NEAR(static_cast<double>(memory.static_bytes) / kGib, 9.96, 0.02);
  EXPECT_NEAR(static_cast<double>(line(memory, "weights")) / kGib, 2 * 2851e6 / kGib, 0.01);
  EXPECT_NEAR(static_cast<double>(line(memory, "gradients")) / kGib, 2 * 2851e6 / 8 / kGib, 0.01);
  EXPECT_NEAR(static_cast<double>(line(memory, "optimizer")) / kGib, 12 * 2851e6 / 8 / kGib, 0.01);
  EXPECT_EQ(line(memory, "reduce bucket"), 1'000'000'000);  // 5e8 elements
}

// P06, DeepSpeed#237: 40B on 8 x 32 GB with MP 8 leaves one replica, 16 x 40 / 8 = 80 GB; the answer was "about 48
// GPUs". 12 x 64 layers x 7168^2 and the tables: 39.9 B.
TEST(Cases, ShardsAreReplicasNotDevices) {
  const ModelSpec model = gpt({64, 7168, 56, 50304});
  ASSERT_NEAR(parameters(model) / 40e9, 1, 0.01);
  SearchRequest request{.model = model,
                        .base = {},
                        .hardware = named_hardware("v100-8-100g"),
                        .rank_counts = {8, 16, 24, 32, 40, 48, 56, 64}};
  request.base.batch.sequence = 1024;
  request.base.parallel.tp = 8;
  request.base.parallel.zero = 2;
  request.base.precision.compute = ComputeKind::kFp16;
  request.fixed = {.tp = true, .cp = true, .pp = true, .zero = true, .compute = true};
  request.goal = SearchGoal::kFewestRanks;
  const auto fewest = search_layouts(request);
  ASSERT_TRUE(fewest.ok()) << fewest.error().message();
  ASSERT_FALSE(fewest->plans.empty());
  const int ranks = fewest->plans[0].config.degrees.world();
  EXPECT_TRUE(ranks == 40 || ranks == 48 || ranks == 56) << ranks;
}

// P06, DeepSpeed#4953: 7B on one 80 GB GPU: ZeRO has nothing to shard over; 16 P = 115.9 GB.
TEST(Cases, OneRankHasNothingToShard) {
  const ModelSpec model = named_model("mistral-7b-v0.1");
  const Inventory inventory = build_inventory(model);
  for (const int zero : {0, 1, 2, 3})
    EXPECT_NEAR(state_bytes(inventory, resolved(model, {.dp = 1, .zero = zero})) / 1e9, 115.9, 0.2);
  const auto result = search_layouts(request_for("mistral-7b-v0.1", "h100-sxm-80gb", 1, 2048));
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->plans.empty());
  EXPECT_EQ(result->obstacle, Obstacle::kStates);
}

// The plain run that works there has everything in bf16: 8 P = 57.9 GB between steps.
TEST(Cases, PureBf16Fits) {
  FrameworkRun run = run_of(Framework::kHf, named_model("mistral-7b-v0.1"), "a100-sxm-80gb");
  run.sequence = 2048;
  run.checkpointing = Checkpointing::kFull;
  run.weight_dtype.set(DType::kBFloat16);
  // Weights and moments; gradients are there at the step.
  EXPECT_NEAR(static_gb(run) + 2 * 7.2417, 57.9, 0.3);
  EXPECT_TRUE(fits(run));
}

// P10, huggingface/blog#2245: full fine-tuning of 70B: 141 GB of weights, 564 GB all in bf16, 1,129 GB at 16 B a
// parameter, 1,270 GB at 18: the recipe is part of the answer.
TEST(Cases, SeventyBillionByRecipe) {
  const ModelSpec model = named_model("llama-3-70b");
  const Inventory inventory = build_inventory(model);
  const auto gigabytes = [&](const RunConfig& config) {
    return static_cast<double>(state_bytes(inventory, resolved_run(model, config))) / 1e9;
  };
  RunConfig config;
  EXPECT_NEAR(gigabytes(config), 1129, 2);
  config.batch = {.global = 2, .micro = 1};
  EXPECT_NEAR(gigabytes(config), 1270, 2);
  config.batch = {};
  config.precision.optimizer_state = OptimizerStateKind::kBf16;
  config.precision.master = MasterKind::kNone;
  EXPECT_NEAR(gigabytes(config), 564, 2);
  EXPECT_NEAR(2 * parameters(model) / 1e9, 141, 0.2);
}

// P10: 8 x 80 GB never, 16 to 24 at least, with recompute at S 4096.
TEST(Cases, SeventyBillionNeedsSixteenToTwentyFour) {
  SearchRequest request = request_for("llama-3-70b", "dgx-a100-80gb", 8, 4096);
  request.fixed = {.cp = true};
  const auto eight = search_layouts(request);
  ASSERT_TRUE(eight.ok());
  EXPECT_TRUE(eight->plans.empty());
  request.rank_counts = {8, 16, 24, 32};
  request.goal = SearchGoal::kFewestRanks;
  const auto fewest = search_layouts(request);
  ASSERT_TRUE(fewest.ok());
  ASSERT_FALSE(fewest->plans.empty());
  EXPECT_GE(fewest->plans[0].config.degrees.world(), 16);
  EXPECT_LE(fewest->plans[0].config.degrees.world(), 24);
}

// P11, LLaMA-Factory#2518: Mixtral, full: 16 P = 747 GB is over 8 x 80 at every level; ZeRO-2 keeps 93.4 GB of weights
// on every GPU however many there are; 16 GPUs with ZeRO-3 hold 46.7 GB of states.
TEST(Cases, MixtralInFull) {
  const ModelSpec model = named_model("mixtral-8x7b");
  const Inventory inventory = build_inventory(model);
  const auto eight = search_layouts(request_for("mixtral-8x7b", "dgx-a100-80gb", 8, 2048));
  ASSERT_TRUE(eight.ok());
  EXPECT_TRUE(eight->plans.empty());
  EXPECT_GT(state_bytes(inventory, resolved(model, {.dp = 4096, .zero = 2})), 93'300'000'000);
  EXPECT_NEAR(state_bytes(inventory, resolved(model, {.dp = 16, .zero = 3})) / 1e9, 46.7, 0.2);
  const auto sixteen = search_layouts(request_for("mixtral-8x7b", "dgx-a100-80gb", 16, 2048));
  ASSERT_TRUE(sixteen.ok());
  EXPECT_FALSE(sixteen->plans.empty());
}

// P11: the five verdicts, of transformers under DeepSpeed: full on 8 (LLaMA-Factory#2518) at no level, ZeRO-2 at no
// number of GPUs, ZeRO-3 on 16 (xtuner#275); LoRA under DDP not, under ZeRO-3 (LLaMA-Factory#2379).
TEST(Cases, MixtralFiveVerdicts) {
  FrameworkRun run = run_of(Framework::kHf, named_model("mixtral-8x7b"), "a800-sxm-80gb");
  run.sequence = 2048;
  run.checkpointing = Checkpointing::kFull;
  run.hf.deepspeed.set(true);
  run.dp = 8;
  for (run.zero = 0; run.zero <= 3; ++run.zero) EXPECT_FALSE(fits(run)) << run.zero;
  run.zero = 2;
  for (const int64_t dp : {16, 64, 4096}) {
    run.dp = dp;
    EXPECT_FALSE(fits(run)) << dp;
  }
  run.zero = 3;
  run.dp = 16;
  EXPECT_TRUE(fits(run));
  run.trains_adapter = true;
  run.rank = 8;
  run.targets = {"q_proj", "v_proj"};
  run.dp = 8;
  EXPECT_TRUE(fits(run));
  run.zero = 0;
  run.hf.deepspeed.set(false);
  EXPECT_FALSE(fits(run));
}

}  // namespace
}  // namespace fivefold::test
