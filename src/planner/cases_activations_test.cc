// Reports of users of other tools, as tests: activations and logits, and what does not go down with more GPUs. The
// number in a test's comment is the report's in docs/planner_cases.md.
#include "base/integer.h"
#include "planner/cases_testing.h"

namespace fivefold::test {
namespace {

// torchtitan's benchmark of 2024-12: Llama-3.1-8B, S 8192, 2 sequences a GPU, selective recompute by operation.
FrameworkRun torchtitan_8b() {
  FrameworkRun run = run_of(Framework::kFsdp2, named_model("llama-3.1-8b"), "h100-sxm-80gb");
  run.zero = 3;
  run.sequence = 8192;
  run.micro = 2;
  run.checkpointing = Checkpointing::kPerOperation;
  run.weight_dtype.set(DType::kFloat32);
  run.gradient_dtype.set(DType::kFloat32);
  run.cross_entropy.set(CrossEntropyKernel::kEager);
  return run;
}

// P14: 8 to 128 GPUs saved 15.4 (eager), 15.0 and 15.0 GiB (compiled, compiled and fp8), calculated 14.0 of states; the
// rest is activations, which data parallelism does not divide. FP8 linears saved 0.2 GiB.
TEST(Cases, MoreGpusSaveOnlyStates) {
  FrameworkRun run = torchtitan_8b();
  for (const bool compiled : {false, true}) {
    run.sharding.compiled.set(compiled);
    run.dp = 8;
    const double eight = peak_gb(run);
    run.dp = 128;
    const double saved = (eight - peak_gb(run)) * 1e9 / kGib;
    EXPECT_GE(saved, 14) << compiled;
    EXPECT_LE(saved, 16) << compiled;
  }
  const double plain = peak_gb(run);
  run.fp8 = true;
  EXPECT_NEAR(peak_gb(run) * 1e9 / kGib, plain * 1e9 / kGib, 1);
}

// P14: the same by fivefold's own engine.
TEST(Cases, MoreRanksSaveOnlyStates) {
  const ModelSpec model = named_model("llama-3.1-8b");
  const Layout eight{.dp = 8, .zero = 3, .micro = 2, .sequence = 8192},
      many{.dp = 128, .zero = 3, .micro = 2, .sequence = 8192};
  const double saved =
      static_cast<double>(ledger_of(model, eight).peak_total - ledger_of(model, many).peak_total) / kGib;
  EXPECT_GE(saved, 14);
  EXPECT_LE(saved, 16);
}

// P16, Megatron-LM#525: GPT-2 774M, 4 x 1024 tokens on a V100 of 32 GB: a request of 786 MiB is 16,384 bytes an entry
// of the vocabulary of 50,304: fp32 logits of 4,096 tokens. Of that time's loss 2 + 4 + 4 bytes: 2.06 GB; without them
// the estimate was too low. Scores were kept, too: 5 a s^2 b bytes a layer.
TEST(Cases, LogitsAndScoresOfGpt2Large) {
  ASSERT_NEAR(4.0 * 4096 * 50304 / kMib, 786, 0.5);
  FrameworkRun run = run_of(Framework::kMegatron, gpt({36, 1280, 20, 50304}), "v100-sxm-32gb");
  run.sequence = 1024;
  run.micro = 4;
  run.compute = DType::kFloat16;
  run.dropout.set(true);
  run.attention.set(AttentionKernel::kUnfused);
  run.cross_entropy.set(CrossEntropyKernel::kEager);
  const ProfileMemory memory = profile_memory(run);
  EXPECT_EQ(line(memory, "logits"), 10 * 4096 * int64_t{50304});
  EXPECT_GE(line(memory, "logits"), 1'500'000'000);
  run.attention.set(AttentionKernel::kFlash);
  // A flash kernel keeps 4 a bytes a token in their place.
  EXPECT_NEAR(static_cast<double>(line(memory, "activations") - line(profile_memory(run), "activations")),
              36 * (5.0 * 20 * 1024 - 4 * 20) * 1024 * 4, 1);
}

struct Logits {
  int64_t vocab, tokens;
  double gib;
};

// P17: fp32 logits: Megatron-LM fork #132, slime#2253, labs-molt#121, SkyRL#1610. GiB are tokens x vocabulary x 4.
TEST(Cases, LogitsOfPublishedShapes) {
  for (const Logits& each : {Logits{151936, 8192, 4.638}, Logits{248320, 11600, 10.73}, Logits{248320, 8192, 7.58},
                             Logits{128000, 65536, 31.25}}) {
    ModelSpec model = named_model("qwen3-0.6b");
    model.vocab = each.vocab;
    model.max_positions = 0;
    Layout layout{.sequence = each.tokens, .loss_chunk = each.tokens, .compute = ComputeKind::kFp32};
    const double whole = ledger_of(model, layout).peak[Account::kLogits] / kGib;
    EXPECT_NEAR(whole, each.gib, 0.01 * each.gib);
    layout.loss_chunk = div_exact(each.tokens, 8);
    EXPECT_NEAR(ledger_of(model, layout).peak[Account::kLogits] / kGib, each.gib / 8, 0.01 * each.gib / 8);
  }
}

// P17: tensor and context parallelism divide them, sequence and data parallelism do not.
TEST(Cases, LogitsAreDividedByVocabularyAndTokens) {
  FrameworkRun run = run_of(Framework::kMegatron, named_model("qwen3-8b"), "h100-sxm-80gb");
  run.sequence = 8192;
  const auto logits = [&] { return static_cast<double>(line(profile_memory(run), "logits")); };
  const double whole = logits();
  EXPECT_NEAR(whole, 6.0 * 8192 * 151936, 0.01 * whole);
  run.dp = 8;
  run.zero = 1;
  EXPECT_EQ(logits(), whole);
  run.tp = 4;
  EXPECT_NEAR(logits(), whole / 4, 0.01 * whole);
  run.sp = true;
  EXPECT_NEAR(logits(), whole / 4, 0.01 * whole);
  run.cp = 2;
  EXPECT_NEAR(logits(), whole / 8, 0.01 * whole);
}

// P18, LLaMA-Factory#4642: Qwen2-7B, LoRA, one sequence of 32,768, ZeRO-3 on A800-80: out of memory. The logits
// are 9.97 (bf16) + 19.93 + 19.93 GB and more; inputs of layers are 6.6 GB, the weights little.
TEST(Cases, LoraAtLongSequencesIsLogits) {
  FrameworkRun run = run_of(Framework::kHf, named_model("qwen2-7b"), "a800-sxm-80gb");
  run.dp = 8;
  run.zero = 3;
  run.hf.deepspeed.set(true);
  run.sequence = 32768;
  run.checkpointing = Checkpointing::kFull;
  run.trains_adapter = true;
  run.rank = 8;
  run.targets = {"q_proj", "v_proj"};
  EXPECT_FALSE(fits(run));
  const ProfileMemory memory = profile_memory(run);
  const auto largest = std::ranges::max_element(memory.peak().lines, {}, &ProfileLine::bytes);
  EXPECT_EQ(largest->name, "loss");  // final norm, logits and loss
  EXPECT_GT(largest->bytes, 49'000'000'000);
  EXPECT_NEAR(static_cast<double>(line(memory, "layer inputs")), 6.6e9, 0.05e9);
  run.dp = 64;
  EXPECT_FALSE(fits(run));  // more GPUs are no way out
  run.dp = 8;
  run.cross_entropy.set(CrossEntropyKernel::kChunked);
  EXPECT_TRUE(fits(run));
}

// P20, xtuner#88, axolotl#1522 and #1428: 70B with NF4 and double quantisation: 36.4 GB on every GPU under DDP or
// ZeRO-2 (the reports have 55 and 52 GB in all), 18.2 under FSDP on two.
TEST(Cases, QloraOfSeventyBillion) {
  FrameworkRun run = run_of(Framework::kHf, named_model("llama-2-70b"), "a100-sxm-40gb");
  run.sequence = 2048;
  run.checkpointing = Checkpointing::kFull;
  run.trains_adapter = true;
  run.frozen.set(FrozenWeights::kNf4Double);
  run.rank = 64;
  run.targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  run.dp = 8;
  const auto frozen_gb = [&] {
    const ProfileMemory memory = profile_memory(run);
    return static_cast<double>(line(memory, "weights") + line(memory, "quantisation")) / 1e9;
  };
  EXPECT_NEAR(frozen_gb(), 36.4, 0.02 * 36.4);
  EXPECT_FALSE(fits(run));
  const double replicated = peak_gb(run);
  run.zero = 2;
  run.hf.deepspeed.set(true);
  EXPECT_FALSE(fits(run));
  EXPECT_LT(peak_gb(run), replicated);
  EXPECT_GT(peak_gb(run), 0.9 * replicated);  // adapters' states alone are divided
}

// P20: FSDP on 2 x 24 GB at S 512: out of memory as it is, 14 GB a GPU with what is sharded on the host.
TEST(Cases, QloraOnTwoGamingCardsNeedsTheHost) {
  FrameworkRun run = run_of(Framework::kHf, named_model("llama-2-70b"), "rtx-3090");
  run.dp = 2;
  run.zero = 3;
  run.sequence = 512;
  run.checkpointing = Checkpointing::kFull;
  run.trains_adapter = true;
  run.frozen.set(FrozenWeights::kNf4Double);
  run.rank = 32;
  run.targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  EXPECT_FALSE(fits(run));
  run.sharding.weights_on_host.set(true);
  EXPECT_TRUE(fits(run));
  EXPECT_LT(static_cast<double>(needed_bytes(profile_memory(run))), 14e9);
  EXPECT_GT(line(profile_memory(run).host.step, "weights"), 17'000'000'000);
}

// P21, Megatron-LM#1225 (25.52 to 24.94 GB), #464: with a fused attention recompute of it drops the log-sum-exp alone.
TEST(Cases, RecomputeOfFusedAttentionSavesNothing) {
  FrameworkRun run = run_of(Framework::kMegatron, gpt({24, 2048, 16, 50304}), "a100-sxm-80gb");
  run.sequence = 2048;
  run.dropout.set(true);
  const auto kept = [&](Checkpointing checkpointing) {
    run.checkpointing = checkpointing;
    return static_cast<double>(line(profile_memory(run), "activations"));
  };
  const double whole = kept(Checkpointing::kNone), attention = kept(Checkpointing::kCoreAttention);
  EXPECT_LT(1 - attention / whole, 0.05);
  EXPECT_NEAR(attention, 24 * 2048 * 34.0 * 2048, 0.001 * attention);  // 34 s b h a layer, 16 bit
  // GPT-3's 96 heads of 128 at 2,048 tokens, a s / h = 16: 34 of 34 + 80 stay.
  run.model = gpt({24, 12288, 96, 50304});
  run.attention.set(AttentionKernel::kUnfused);
  EXPECT_NEAR(1 - kept(Checkpointing::kCoreAttention) / kept(Checkpointing::kNone), 0.70, 0.01);
  run.checkpointing = Checkpointing::kCoreAttention;
  EXPECT_EQ(line(profile_memory(run), "scores of a layer"), 5 * 96 * 2048 * int64_t{2048});
}

// P21, of fivefold's own layers: only the log-sum-exp (4 a bytes a token) would be dropped.
TEST(Cases, AttentionKeepsNoScores) {
  const ModelSpec model = named_model("llama-3-8b");
  int64_t sum = 0, of_attention = 0;
  for (const SavedTensor& tensor : saved_tensors_by_range(model, build_inventory(model), resolved(model, {}))) {
    sum += tensor.bytes_per_token;
    if (tensor.name.ends_with("attention.lse")) of_attention += tensor.bytes_per_token;
  }
  EXPECT_EQ(of_attention, 4 * 32);
  EXPECT_LT(static_cast<double>(of_attention), 0.05 * static_cast<double>(sum));
}

// P22, Megatron-Bridge#5077: 8 layers as [1, 2, 2, 3]: the heaviest stage counts, not the mean.
TEST(Cases, ThePeakIsThatOfTheHeaviestStage) {
  FrameworkRun run = run_of(Framework::kMegatron, named_model("mixtral-8x7b"), "h100-sxm-80gb");
  run.model.layers.resize(8);
  run.pp = 4;
  run.stage_layers = {1, 2, 2, 3};
  run.sequence = 4096;
  run.microbatches = 1;
  const ProfileMemory memory = profile_memory(run);
  EXPECT_EQ(memory.stage, 3);
  run.stage_layers = {2, 2, 2, 2};
  EXPECT_GT(memory.peak().bytes(), 5 * profile_memory(run).peak().bytes() / 4);
}

// P22, Megatron-LM#1784: experts' activations follow the number that a token is sent to.
TEST(Cases, ActivationsOfExpertsFollowTopK) {
  FrameworkRun run = run_of(Framework::kMegatron, named_model("mixtral-8x7b"), "h100-sxm-80gb");
  run.sequence = 4096;
  const auto activations = [&](int64_t top_k) {
    for (LayerSpec& layer : run.model.layers) layer.mlp.experts_per_token = top_k;
    return static_cast<double>(line(profile_memory(run), "activations"));
  };
  // A further expert: 2 h + 6 f, a token and layer.
  EXPECT_NEAR(activations(8) - activations(2), 6.0 * 32 * 4096 * (2 * 4096 + 6 * 14336), 1e6);
}

// P23, DeepSpeed#4477: stages of as many layers; the first one is the fullest.
TEST(Cases, TheFirstStageIsFuller) {
  FrameworkRun run = run_of(Framework::kMegatron, named_model("llama-2-13b"), "a100-sxm-80gb");
  run.model.layers.resize(40);
  run.sequence = 2048;
  run.microbatches = 32;
  run.model.vocab = 1024;
  for (const int64_t stages : {2, 4, 8}) {
    run.pp = stages;
    EXPECT_EQ(profile_memory(run).stage, 0) << stages;
  }
  // Logits of more than seven microbatches' activations: 6 B x V against 7 x 5 layers x (16 h + 6 f + 4 a).
  const double activations = 7 * 5 * (16.0 * 5120 + 6 * 13824 + 4 * 40);
  run.model.vocab = static_cast<int64_t>(1.5 * activations / 6);
  EXPECT_EQ(profile_memory(run).stage, 7);
}

}  // namespace
}  // namespace fivefold::test
