// Reports of users of other tools, as tests: throughput on GPUs. The number in a test's comment is the report's in
// docs/planner_cases.md.
#include <cmath>
#include <map>

#include "planner/cases_testing.h"
#include "planner/profiles/framework_search.h"

namespace fivefold::test {
namespace {

double tokens_per_s(const FrameworkRun& run, const HardwareSpec& hardware) {
  const Result<FrameworkTime> time = framework_time(run, hardware);
  EXPECT_TRUE(time.ok()) << (time.ok() ? "" : time.error().message());
  return time->tokens_per_s;
}

// MPT of llm-foundry: plain layers of 4 h, tied, 50,368 tokens.
ModelSpec mpt(int billions) {
  const std::map<int, Gpt> shapes{{3, {32, 2560, 20, 50368}},
                                  {7, {32, 4096, 32, 50368}},
                                  {13, {40, 5120, 40, 50368}},
                                  {30, {48, 7168, 56, 50368}},
                                  {70, {80, 8192, 64, 50368}}};
  return gpt(shapes.at(billions));
}

enum class Again : uint8_t { kNothing, kLayers };  // activation checkpointing
struct Measured {
  int billions;
  int64_t sequence, gpus, micro, microbatches;
  Again again;
  double tokens_per_s;  // of a GPU
};

// Composer's FSDP: fp32 shards, flash-attention's cross-entropy, layer norms in bf16 (llm-foundry's defaults).
FrameworkRun mosaic(const Measured& row, const char* gpu) {
  FrameworkRun run = run_of(Framework::kFsdp2, mpt(row.billions), gpu);
  run.zero = 3;
  run.dp = row.gpus;
  run.sequence = row.sequence;
  run.micro = row.micro;
  run.microbatches = row.microbatches;
  run.checkpointing = row.again == Again::kLayers ? Checkpointing::kFull : Checkpointing::kNone;
  run.weight_dtype.set(DType::kFloat32);
  run.gradient_dtype.set(DType::kFloat32);
  run.cross_entropy.set(CrossEntropyKernel::kNativeFused);
  run.sharding.compiled.set(false);
  run.hf.fused_norms.set(true);
  return run;
}

constexpr Again kNone = Again::kNothing, kAgain = Again::kLayers;
const std::vector<Measured> kH100{
    {7, 2048, 8, 6, 1, kNone, 10643},   {7, 8192, 8, 8, 2, kAgain, 6935},    {13, 2048, 8, 2, 1, kNone, 4792},
    {13, 2048, 16, 2, 1, kNone, 4767},  {13, 2048, 32, 2, 1, kNone, 4811},   {13, 2048, 64, 2, 1, kNone, 4800},
    {30, 2048, 8, 3, 21, kAgain, 2002}, {30, 2048, 16, 10, 3, kAgain, 2263}, {30, 2048, 32, 14, 3, kAgain, 2308},
    {70, 2048, 32, 2, 16, kAgain, 882}, {70, 2048, 64, 8, 4, kAgain, 1039}};
const std::vector<Measured> kA100{{7, 2048, 8, 6, 2, kNone, 4641},    {7, 4096, 8, 16, 2, kAgain, 3684},
                                  {13, 2048, 8, 2, 3, kNone, 2262},   {30, 8192, 8, 1, 21, kAgain, 574},
                                  {70, 2048, 32, 2, 16, kAgain, 373}, {70, 2048, 64, 8, 4, kAgain, 410}};
const std::vector<Measured> kA100Of40{{13, 2048, 8, 4, 16, kAgain, 1668},   {13, 2048, 16, 10, 3, kAgain, 1993},
                                      {13, 2048, 32, 14, 3, kAgain, 1998},  {13, 2048, 64, 16, 1, kAgain, 1976},
                                      {13, 2048, 128, 16, 1, kAgain, 1972}, {70, 2048, 64, 2, 1, kAgain, 276},
                                      {70, 2048, 128, 4, 1, kAgain, 376}};

struct Table {
  const char *gpu, *cluster;
  const std::vector<Measured>& rows;
};
const Table kTables[] = {{"h100-sxm-80gb", "dgx-h100", kH100},
                         {"a100-sxm-80gb", "dgx-a100-80gb", kA100},
                         {"a100-sxm-40gb", "dgx-a100-40gb", kA100Of40}};

// P37, llm-foundry's benchmark: all of it ran, and with one constant a GPU type every row is within 20 %.
TEST(Cases, MosaicTableWithinTwentyPercent) {
  for (const Table& table : kTables) {
    const HardwareSpec hardware = named_hardware(table.cluster);
    double least = 10, most = 0;
    for (const Measured& row : table.rows) {
      const FrameworkRun run = mosaic(row, table.gpu);
      EXPECT_TRUE(fits(run)) << table.gpu << " " << row.billions << "B on " << row.gpus;
      const double ratio = tokens_per_s(run, hardware) / row.tokens_per_s;
      least = std::min(least, ratio), most = std::max(most, ratio);
    }
    // The constant in the middle of them.
    EXPECT_LT(std::sqrt(most / least), 1.2) << table.gpu << ": predicted / measured from " << least << " to " << most;
    EXPECT_GT(std::sqrt(most * least), 0.85) << table.gpu;
    EXPECT_LT(std::sqrt(most * least), 1.18) << table.gpu;
  }
}

// P37: without recompute where it fits: MFU 64 against 55 to 58 % (7B on A100); larger microbatches are why 8, 16 and
// 32 GPUs get faster each (13B on 40 GB).
TEST(Cases, MosaicOrder) {
  const HardwareSpec a100 = named_hardware("dgx-a100-80gb");
  const auto mfu = [&](const Measured& row) { return framework_time(mosaic(row, "a100-sxm-80gb"), a100)->mfu; };
  EXPECT_GT(mfu({7, 2048, 8, 6, 2, kNone, 0}), 1.05 * mfu({7, 4096, 8, 16, 2, kAgain, 0}));
  EXPECT_GT(mfu({7, 2048, 8, 6, 2, kNone, 0}), 1.05 * mfu({7, 1024, 8, 64, 2, kAgain, 0}));
  const HardwareSpec small = named_hardware("dgx-a100-40gb");
  double before = 0;
  for (size_t i = 0; i < 3; ++i) {
    const double tokens = tokens_per_s(mosaic(kA100Of40[i], "a100-sxm-40gb"), small);
    EXPECT_GT(tokens, before) << kA100Of40[i].gpus;
    before = tokens;
  }
}

// torchtitan's benchmark of 2024-12, table 1 and 3: Llama-3.1-8B, S 8192, 2 sequences a GPU.
FrameworkRun torchtitan(const char* model, const char* gpu) {
  FrameworkRun run = run_of(Framework::kFsdp2, named_model(model), gpu);
  run.zero = 3;
  run.dp = 8;
  run.sequence = 8192;
  run.micro = 2;
  run.checkpointing = Checkpointing::kPerOperation;
  run.weight_dtype.set(DType::kFloat32);
  run.gradient_dtype.set(DType::kFloat32);
  return run;
}

// P14: 8 to 128 GPUs changed the throughput by -2 to -3 %.
TEST(Cases, MoreGpusCostAFewPercent) {
  const HardwareSpec h100 = named_hardware("dgx-h100");
  FrameworkRun run = torchtitan("llama-3.1-8b", "h100-sxm-80gb");
  const double eight = tokens_per_s(run, h100);
  run.dp = 128;
  const double change = tokens_per_s(run, h100) / eight - 1;
  EXPECT_LE(change, -0.01);
  EXPECT_GE(change, -0.06);
}

// P42: fp8 products gave 28 % there.
TEST(Cases, Fp8IsForSpeed) {
  const HardwareSpec h100 = named_hardware("dgx-h100");
  FrameworkRun run = torchtitan("llama-3.1-8b", "h100-sxm-80gb");
  const double plain = tokens_per_s(run, h100);
  run.fp8 = true;
  const double gain = tokens_per_s(run, h100) / plain - 1;
  EXPECT_GE(gain, 0.15);
  EXPECT_LE(gain, 0.35);
}

// P42, llm-foundry: 3B gained 27 % at S 2048 and nothing at S 32768, with recompute: there products are 18 % of the
// step (2.65e9 x 8 / 0.69e15 s of 1 / 5,873), so that a rate 1.5 times as high is worth 6 % before its casts.
TEST(Cases, Fp8GainsLittleWhereAttentionDominates) {
  const HardwareSpec h100 = named_hardware("dgx-h100");
  const auto gain = [&](const Measured& row) {
    FrameworkRun run = mosaic(row, "h100-sxm-80gb");
    const double plain = tokens_per_s(run, h100);
    run.fp8 = true;
    return tokens_per_s(run, h100) / plain - 1;
  };
  const double at_2k = gain({3, 2048, 8, 10, 6, kNone, 0}), at_32k = gain({3, 32768, 8, 3, 6, kAgain, 0});
  EXPECT_GE(at_2k, 0.15);
  EXPECT_LE(at_2k, 0.35);
  EXPECT_LT(at_32k, 0.07);
  EXPECT_LT(at_32k, at_2k / 3);
}

// P40, torchtitan#676: 70B on 32 H200 of 4 nodes: 200 tokens/s a GPU is under 0.35 of what the run should have: the
// link between the nodes was not in use.
TEST(Cases, FarBelowWhatTheClusterCanDo) {
  FrameworkRun run = torchtitan("llama-3.1-70b", "h200-sxm-141gb");
  run.dp = 32;
  run.micro = 1;
  run.checkpointing = Checkpointing::kFull;
  EXPECT_LT(200 / tokens_per_s(run, named_hardware("dgx-h200")), 0.35);
}

// P35, Megatron-LM#1031: 70B on 128 H100: TP 8 PP 8 with full recompute had 296.5 TFLOP/s, TP 8 PP 2 without 420.5.
TEST(Cases, SequenceParallelismSavesTheRecompute) {
  const HardwareSpec h100 = named_hardware("dgx-h100");
  FrameworkRun run = run_of(Framework::kMegatron, named_model("llama-2-70b"), "h100-sxm-80gb");
  run.sequence = 4096;
  run.zero = 1;
  run.tp = 8;
  run.tuned_kernels.set(true);
  const auto at = [&](int64_t pp, bool sp, Checkpointing checkpointing) {
    run.pp = pp;
    run.sp = sp;
    run.dp = 16 / pp;
    run.microbatches = 1024 / run.dp;
    run.checkpointing = checkpointing;
    return fits(run) ? tokens_per_s(run, h100) : 0;
  };
  double best = 0;
  FrameworkRun chosen;
  for (const int64_t pp : {2, 4, 8})
    for (const bool sp : {false, true})
      for (const Checkpointing checkpointing : {Checkpointing::kNone, Checkpointing::kFull})
        if (const double tokens = at(pp, sp, checkpointing); tokens > best) best = tokens, chosen = run;
  EXPECT_TRUE(chosen.sp);
  EXPECT_LE(chosen.pp, 4);
  EXPECT_EQ(chosen.checkpointing, Checkpointing::kNone);
  const double gain = best / at(8, true, Checkpointing::kFull);
  EXPECT_GE(gain, 1.25);
  EXPECT_LE(gain, 1.45);
  // States of 6 + 12/8 bytes: 32.3 GB; a layer's activations 0.143 GB where h-wide tensors are divided, 40 x 2 of them.
  at(2, true, Checkpointing::kNone);
  EXPECT_NEAR(static_gb(run), 32.3, 0.5);
}

// P35: what the search takes with TP 8.
TEST(Cases, SearchTakesSequenceParallelismAndTwoStages) {
  FrameworkRequest request;
  request.base = run_of(Framework::kMegatron, named_model("llama-2-70b"), "h100-sxm-80gb");
  request.base.sequence = 4096;
  request.base.tp = 8;
  request.fixed = {.tp = true};
  request.hardware = named_hardware("dgx-h100");
  request.gpus = 128;
  for (const int64_t global : {256, 1024}) {
    request.global_batch = global;
    const auto result = search_framework(request);
    ASSERT_TRUE(result.ok());
    ASSERT_FALSE(result->plans.empty());
    const FrameworkLayout& best = result->plans[0].layout;
    EXPECT_TRUE(best.sp);
    EXPECT_TRUE(best.pp == 2 || best.pp == 4) << best.pp;
    EXPECT_EQ(best.checkpointing, Checkpointing::kNone);
  }
}

// P29, SkyRL#1768, compressed-tensors#587: whatever the framework, a plan and what is outside its tensors fill at most
// 95 % of a card.
TEST(Cases, PlansOfFrameworksLeaveHeadRoom) {
  for (const Framework framework : {Framework::kMegatron, Framework::kFsdp2, Framework::kHf, Framework::kDeepspeed})
    for (const char* model : {"llama-3.1-8b", "qwen2.5-3b", "llama-2-13b"}) {
      FrameworkRequest request;
      request.base = run_of(framework, named_model(model), "h100-sxm-80gb");
      request.base.sequence = 4096;
      request.hardware = named_hardware("dgx-h100");
      request.gpus = 8;
      const auto result = search_framework(request);
      ASSERT_TRUE(result.ok());
      EXPECT_FALSE(result->plans.empty()) << model;
      for (const FrameworkPlan& plan : result->plans)
        EXPECT_LE(static_cast<double>(plan.memory.peak().bytes() + kOutsideAllocator),
                  0.95 * static_cast<double>(plan.capacity))
            << model << " " << to_string(framework);
    }
}

// P36, Megatron-LM#258: 10B on one node of 8 A100: with many microbatches PP 8 was 30 % faster than TP 8.
TEST(Cases, TensorSplitsInANodeAreNoLaw) {
  const HardwareSpec a100 = named_hardware("dgx-a100-80gb");
  FrameworkRun run = run_of(Framework::kMegatron, gpt({48, 4096, 32, 50304}), "a100-sxm-80gb");
  run.sequence = 2048;
  const auto at = [&](int64_t tp, int64_t pp, int64_t microbatches) {
    run.tp = tp;
    run.sp = tp > 1;
    run.pp = pp;
    run.microbatches = microbatches;
    return tokens_per_s(run, a100);
  };
  for (const int64_t microbatches : {64, 128}) EXPECT_GE(at(1, 8, microbatches), at(8, 1, microbatches));
  EXPECT_LT(at(1, 8, 4), at(8, 1, 4));
}

}  // namespace
}  // namespace fivefold::test
