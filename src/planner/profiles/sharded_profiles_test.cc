// nanotron, FSDP 2 and DeepSpeed: published runs whose bytes were worked out line by line, and what each switch does;
// the measured peaks are those of the sources that docs/profiles names.
#include <gtest/gtest.h>

#include "planner/profiles/framework_run.h"
#include "planner/profiles/profiles_testing.h"

namespace fivefold {
namespace {

ModelSpec llama(int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t ffn, int64_t vocab,
                bool tied) {
  LayerSpec layer;
  layer.mixer.num_heads = heads;
  layer.mixer.num_kv_heads = kv_heads;
  layer.mixer.head_dim = hidden / heads;
  layer.mlp.ffn = ffn;
  ModelSpec model;
  model.hidden = hidden;
  model.vocab = vocab;
  model.tied_embeddings = tied;
  model.layers.assign(static_cast<size_t>(layers), layer);
  return model;
}

// A model of 1.34 B parameters on 64 GPUs, 4 stages of which the first has 6 of the 16 layers.
FrameworkRun nanotron_1b() {
  FrameworkRun run;
  run.framework = Framework::kNanotron;
  run.model = llama(16, 2048, 32, 32, 8192, 131072, true);
  run.gpu = "h100-sxm-80gb";
  run.dp = 16;
  run.pp = 4;
  run.zero = 1;
  run.sequence = 4096;
  run.micro = 4;
  run.microbatches = 4;
  run.reported = ReportedRank::kFirst;
  run.stage_layers = {6, 5, 5, 0};
  return run;
}

// Half as much as of most runs was reserved beside the activations; repeats of runs differ by up to 7.7 %.
TEST(NanotronProfile, FirstOfFourStages) {
  const ProfileMemory memory = profile_memory(nanotron_1b());
  expect_line(memory, "weights", 1'342'226'432.0);
  expect_line(memory, "gradients", 2'684'452'864.0);
  expect_line(memory, "optimizer", 503'334'912.0);
  expect_line(memory, "bf16 gradients", 1'342'226'432.0);
  // 4 in flight x 6 layers x 16,384 tokens x (16 h + 8 f + 4 a + 8).
  expect_line(memory, "activations", 24.0 * 16384 * (16 * 2048 + 8 * 8192 + 4 * 32 + 8));
  EXPECT_EQ(line(memory, "logits"), 0);
  EXPECT_EQ(line(memory, "gather buffers"), 0);
  expect_peak(memory, 48'307'644'662.0, 0.05);
}

// The output matrix costs as much as 4 layers of this model: 20 in all, 5 a stage, and a stage that has its share is
// closed. With 32 layers' worth of output matrix and uneven shares the layer that reaches the share is the stage's.
TEST(NanotronProfile, CutsStagesByCost) {
  FrameworkRun run = nanotron_1b();
  run.stage_layers.clear();
  const double layer = 4.0 * 2048 * 2048 + 3.0 * 2048 * 8192 + 2 * 2048, table = 131072.0 * 2048;
  expect_line(profile_memory(run), "weights", 2 * (5 * layer + table));
  run.reported = ReportedRank::kLast;  // 16 - 15 layers, the norm, a copy of the token table
  expect_line(profile_memory(run), "weights", 2 * (layer + 2048 + table));
  run.reported = ReportedRank::kFirst;
  run.pp = 8;  // 2.5 layers a stage: the third one reaches it
  expect_line(profile_memory(run), "weights", 2 * (3 * layer + table));
}

TEST(NanotronProfile, BuffersOfCollectivesPileUpOnSmallClustersUnlessSaid) {
  FrameworkRun run = nanotron_1b();
  run.stage_layers.clear();
  run.pp = 1;
  run.tp = 8;
  run.sp = true;
  run.dp = 4;
  const ProfileMemory small = profile_memory(run);
  ASSERT_EQ(small.assumed.size(), 1u);
  // 0.67 x 16 layers x 16,384 tokens x 4 h (1 - 1/8).
  expect_line(small, "buffers of collectives", 0.67 * 16 * 16384 * 4 * 2048 * 7 / 8);
  expect_line(small, "gather buffers", 2.0 * 2 * 2048 * 16384);
  run.keeps_gathered_inputs.set(false);
  const ProfileMemory none = profile_memory(run);
  EXPECT_TRUE(none.assumed.empty());
  EXPECT_EQ(line(none, "buffers of collectives"), 0);
  run.keeps_gathered_inputs = {};
  run.dp = 64;  // 512 GPUs
  EXPECT_EQ(line(profile_memory(run), "buffers of collectives"), 0);
}

// Llama-3.1-8B in torchtitan on 8 B200, selective recompute by operation, compiled loss.
FrameworkRun torchtitan_8b() {
  FrameworkRun run;
  run.framework = Framework::kFsdp2;
  run.model = llama(32, 4096, 32, 8, 14336, 128256, false);
  run.gpu = "b200-sxm-180gb";
  run.dp = 8;
  run.zero = 3;
  run.sequence = 8192;
  run.checkpointing = Checkpointing::kPerOperation;
  run.weight_dtype.set(DType::kFloat32);
  run.cross_entropy.set(CrossEntropyKernel::kCompiled);
  return run;
}

TEST(Fsdp2Profile, TorchtitanLlama8b) {
  const ProfileMemory memory = profile_memory(torchtitan_8b());
  expect_line(memory, "weights", 4'014'997'504.0);
  expect_line(memory, "gradients", 4'014'997'504.0);
  expect_line(memory, "optimizer", 8'029'995'008.0);
  expect_line(memory, "unsharded", 1'923'088'384.0);
  expect_line(memory, "activations", 16'676'552'704.0);
  expect_line(memory, "logits", 3'152'019'456.0);
  expect_peak(memory, 36'195'836'887.0, 0.07);
}

// Latent attention (16 heads of 128 + 64, values of 128, ranks 0 and 512) and 6 of 64 experts, compiled: norms with
// inputs and outputs, wide queries, keys, values, output, log-sum-exp, latents, rows in and out, gate, up and product.
TEST(Fsdp2Profile, LatentAttentionAndExperts) {
  FrameworkRun run = torchtitan_8b();
  run.checkpointing = Checkpointing::kNone;
  LayerSpec layer;
  layer.mixer.kind = MixerKind::kLatentAttention;
  layer.mixer.num_heads = layer.mixer.num_kv_heads = 16;
  layer.mixer.head_dim = 192;
  layer.mixer.qk_nope_head_dim = layer.mixer.v_head_dim = 128;
  layer.mixer.qk_rope_head_dim = 64;
  layer.mixer.kv_lora_rank = 512;
  layer.mlp.kind = MlpKind::kMoe;
  layer.mlp.num_experts = 64;
  layer.mlp.experts_per_token = 6;
  layer.mlp.expert_ffn = 1408;
  layer.mlp.shared_ffn = 2816;
  run.model.hidden = 2048;
  run.model.layers.assign(1, layer);
  const double attention = 2 * 16 * (192 + 192 + 128 + 128) + 4 * 16 + 4 * 512 + 2 * 64;
  const double experts = 4 * 2048 * 6 + 6 * (6 * 1408 + 2816);
  expect_line(profile_memory(run), "activations", (8 * 2048 + attention + experts) * 8192);
}

// A Mamba-2 layer of its own: one norm; projection, scan and gated norm.
TEST(Fsdp2Profile, Mamba) {
  FrameworkRun run = torchtitan_8b();
  run.checkpointing = Checkpointing::kNone;
  LayerSpec layer;
  layer.single_norm = true;
  layer.mlp.kind = MlpKind::kNone;
  layer.mixer.kind = MixerKind::kMamba2;
  layer.mixer.ssm_heads = 64;
  layer.mixer.ssm_head_dim = 64;
  layer.mixer.ssm_groups = 8;
  layer.mixer.ssm_state = 128;
  run.model.hidden = 2048;
  run.model.layers.assign(1, layer);
  const double mixer = 2 * (2 * 4096 + 2 * 8 * 128 + 64) + 2 * 4096 + 2 * 4096;
  expect_line(profile_memory(run), "activations", (4 * 2048 + mixer) * 8192);
}

// 70B on 256 H100, t = 8: 71.9 GiB as it is, 67.6 with async tensor parallelism (torchtitan's table 4).
TEST(Fsdp2Profile, TensorParallelLoss) {
  FrameworkRun run = torchtitan_8b();
  run.model = llama(80, 8192, 64, 8, 28672, 128256, false);
  run.dp = 32;
  run.tp = 8;
  run.sp = true;
  run.micro = 16;
  run.checkpointing = Checkpointing::kFull;
  run.cross_entropy.set(CrossEntropyKernel::kEager);
  run.keeps_gathered_inputs.set(true);
  const ProfileMemory memory = profile_memory(run);
  expect_line(memory, "activations", 80.0 * 131072 * 2 * 8192 / 8);
  expect_line(memory, "logits", 22.0 * 131072 * 128256 / 8);
  expect_peak(memory, 71.9 * 0x1p30, 0.01);
  run.keeps_gathered_inputs.set(false);
  expect_peak(profile_memory(run), 67.6 * 0x1p30, 0.01);
}

// torchtune's recipes of a 3.2B model on one A100, 2 packed sequences of 4,096: its README's steps.
TEST(Fsdp2Profile, TorchtuneSteps) {
  FrameworkRun run;
  run.framework = Framework::kFsdp2;
  run.model = llama(28, 3072, 24, 8, 8192, 128256, true);
  run.sequence = 4096;
  run.micro = 2;
  run.weight_dtype.set(DType::kBFloat16);
  run.gradient_dtype.set(DType::kBFloat16);
  run.optimizer_state_bits.set(16);
  const auto expect = [&](double gib, double tolerance) { expect_peak(profile_memory(run), gib * 0x1p30, tolerance); };
  run.cross_entropy.set(CrossEntropyKernel::kEager);
  run.sharding.compiled.set(false);
  expect(60.0, 0.02);
  run.sharding.compiled.set(true);
  expect(51.0, 0.02);
  run.cross_entropy.set(CrossEntropyKernel::kChunked);
  expect(42.9, 0.05);
  run.checkpointing = Checkpointing::kFull;
  expect(24.9, 0.05);
  EXPECT_EQ(profile_memory(run).peak().name, "optimizer");
  run.sharding.optimizer_in_backward.set(true);
  expect(23.1, 0.01);
  EXPECT_EQ(profile_memory(run).peak().name, "loss");
  run.activations_on_host.set(true);
  expect(21.8, 0.01);
  run.trains_adapter = true;
  run.rank = 8;
  run.targets = {"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  expect(8.5, 0.01);
  run.frozen.set(FrozenWeights::kNf4Double);
  expect(4.6, 0.01);
}

// Stages hold their own layers, tables and microbatches in flight.
TEST(Fsdp2Profile, FirstOfTwoStages) {
  FrameworkRun run = torchtitan_8b();
  run.pp = 2;
  run.microbatches = 4;
  run.reported = ReportedRank::kFirst;
  const ProfileMemory memory = profile_memory(run);
  expect_line(memory, "weights", (16 * 218'112'000.0 + 128256.0 * 4096) * 4 / 8);
  expect_line(memory, "activations", 16'676'552'704.0);  // half the layers, twice
  EXPECT_EQ(line(memory, "logits"), 0);
}

// BLOOM's trials: 72 layers of 14,336 on 384 A100, t = 8, p = 6, fp16; the first stage has 12 layers and the table.
FrameworkRun bloom() {
  FrameworkRun run;
  run.framework = Framework::kDeepspeed;
  LayerSpec layer;
  layer.norm = {.kind = NormKind::kLayer, .bias = true};
  layer.mixer.num_heads = layer.mixer.num_kv_heads = 64;
  layer.mixer.head_dim = 224;
  layer.mixer.qkv_bias = layer.mixer.out_bias = true;
  layer.mlp.kind = MlpKind::kPlain;
  layer.mlp.ffn = 4 * 14336;
  layer.mlp.bias = true;
  run.model.hidden = 14336;
  run.model.vocab = 250880;
  run.model.tied_embeddings = true;
  run.model.final_norm = layer.norm;
  run.model.layers.assign(72, layer);
  run.gpu = "a100-sxm-80gb";
  run.dp = run.tp = 8;
  run.pp = 6;
  run.zero = 1;
  run.sequence = 2048;
  run.micro = 4;
  run.microbatches = 64;
  run.compute = DType::kFloat16;
  run.checkpointing = Checkpointing::kFull;
  run.attention.set(AttentionKernel::kUnfused);
  run.sharding.counts_process.set(true);
  return run;
}

TEST(DeepspeedProfile, BloomTrials) {
  FrameworkRun run = bloom();
  const ProfileMemory memory = profile_memory(run);
  // 12 x 12 h^2 / 8 and V h / 8; norms and biases are 0.02 %.
  const double n = 12 * 12 * 14336.0 * 14336 / 8 + 250880.0 * 14336 / 8;
  expect_line(memory, "weights", 2 * n);
  expect_line(memory, "gradients", 2 * n);
  expect_line(memory, "optimizer", 12 * n / 8);
  expect_line(memory, "partition's gradients", 6 * n / 8);
  expect_line(memory, "layer inputs", 12.0 * 6 * 2 * 14336 * 4 * 2048);
  expect_peak(memory, 55 * 0x1p30, 0.04);
  run.micro = 1;
  run.microbatches = 256;
  expect_peak(profile_memory(run), 38 * 0x1p30, 0.04);
}

// 70 layers on 12 stages: table and output matrix count as a layer each, 6 a stage; gradients are added in fp32.
TEST(DeepspeedProfile, Bf16Optimizer) {
  FrameworkRun run = bloom();
  run.model.layers.resize(70);
  run.tp = 4;
  run.pp = 12;
  run.micro = 2;
  run.microbatches = 128;
  run.compute = DType::kBFloat16;
  run.sharding.bf16_optimizer.set(true);
  const ProfileMemory memory = profile_memory(run);
  const double n = 5 * 12 * 14336.0 * 14336 / 4 + 250880.0 * 14336 / 4;
  expect_line(memory, "fp32 gradients", 4 * n);
  expect_peak(memory, 59 * 0x1p30, 0.03);
}

TEST(DeepspeedProfile, LevelsOfZero) {
  FrameworkRun run = bloom();
  const double n = static_cast<double>(line(profile_memory(run), "weights")) / 2;
  run.zero = 2;
  expect_line(profile_memory(run), "gradients", 2 * n / 8);
  run.zero = 3;
  expect_line(profile_memory(run), "weights", 2 * n / 8);
  run.zero = 0;
  expect_line(profile_memory(run), "optimizer", 12 * n);
}

}  // namespace
}  // namespace fivefold
