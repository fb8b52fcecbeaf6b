// What layers of Megatron-Core keep, and states beside Adam's in full, against sums by hand.
#include <gtest/gtest.h>

#include "planner/profiles/framework_run.h"
#include "planner/profiles/megatron_parts.h"
#include "planner/profiles/profiles_testing.h"

namespace fivefold {
namespace {

// h 512, a 8 of 64, f 2048 gated, s 1024, one sequence on an H100.
FrameworkRun small_run() {
  FrameworkRun run;
  run.model.hidden = 512;
  run.model.vocab = 1024;
  LayerSpec layer;
  layer.mixer.num_heads = layer.mixer.num_kv_heads = 8;
  layer.mixer.head_dim = 64;
  layer.mlp.ffn = 2048;
  run.model.layers.assign(2, layer);
  run.gpu = "h100-sxm-80gb";
  run.sequence = 1024;
  return run;
}
double layer_bytes(const FrameworkRun& run) { return megatron_layer_bytes(run, run.model.layers.back()); }

// Two norms with inputs and outputs, q k v, output, log-sum-exp, gate and up with their product.
constexpr double kDense = 8.0 * 512 + 6 * 512 + 2 * 512 + 4 * 8 + 6 * 2048;

MlpSpec experts() {
  MlpSpec m;
  m.kind = MlpKind::kMoe;
  m.num_experts = 16;
  m.experts_per_token = 4;
  m.expert_ffn = 256;
  m.shared_ffn = 512;
  return m;
}

TEST(MegatronLayers, Dense) { EXPECT_DOUBLE_EQ(layer_bytes(small_run()), kDense); }

// Probabilities of 2 bytes; with dropout a mask and the result too, and masks of both residual adds.
TEST(MegatronLayers, UnfusedAttention) {
  FrameworkRun run = small_run();
  run.attention.set(AttentionKernel::kUnfused);
  EXPECT_DOUBLE_EQ(layer_bytes(run), kDense - 4 * 8 + 2.0 * 8 * 1024);
  run.dropout.set(true);
  EXPECT_DOUBLE_EQ(layer_bytes(run), kDense - 4 * 8 + 5.0 * 8 * 1024 + 2 * 512);
  run.checkpointing = Checkpointing::kCoreAttention;
  EXPECT_DOUBLE_EQ(layer_bytes(run), kDense - 4 * 8 + 2 * 512);
}

// Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), figure 1: with sequence
// parallelism and selective recompute a layer keeps 34 s b h / t; 22 B parameters have 9.5625 GiB.
TEST(MegatronLayers, SelectiveRecomputeOf22Billion) {
  FrameworkRun run;
  LayerSpec layer;
  layer.mixer.num_heads = layer.mixer.num_kv_heads = 64;
  layer.mixer.head_dim = 96;
  layer.mlp.kind = MlpKind::kPlain;
  layer.mlp.ffn = 4 * 6144;
  run.model.hidden = 6144;
  run.model.vocab = 51200;
  run.model.layers.assign(48, layer);
  run.gpu = "a100-sxm-80gb";
  run.tp = 8;
  run.sp = true;
  run.sequence = 2048;
  run.micro = 4;
  run.dropout.set(true);
  run.attention.set(AttentionKernel::kUnfused);
  run.checkpointing = Checkpointing::kCoreAttention;
  EXPECT_EQ(line(profile_memory(run), "activations"), static_cast<int64_t>(9.5625 * 0x1p30));
  // Figure 7: of what is kept with neither, sequence parallelism leaves 66.84 %, selective recompute 49.42 %, both
  // 16.18 %, full recompute without the former 7.64 %.
  const auto kept = [&](bool sp, Checkpointing checkpointing) {
    run.sp = sp;
    run.checkpointing = checkpointing;
    const ProfileMemory memory = profile_memory(run);
    return static_cast<double>(line(memory, "activations") + line(memory, "layer inputs"));
  };
  const double all = kept(false, Checkpointing::kNone) / 100;
  EXPECT_NEAR(kept(true, Checkpointing::kNone) / all, 66.84, 0.1);
  EXPECT_NEAR(kept(false, Checkpointing::kCoreAttention) / all, 49.42, 0.1);
  EXPECT_NEAR(kept(true, Checkpointing::kCoreAttention) / all, 16.18, 0.1);
  EXPECT_NEAR(kept(false, Checkpointing::kFull) / all, 7.64, 0.1);
}

// A row: 2 h, gate and up, the product; a plain activation keeps its output beside the scaled one.
TEST(MegatronLayers, Experts) {
  FrameworkRun run = small_run();
  run.model.layers.back().mlp = experts();
  const double rest = kDense - 6 * 2048 + 8 * 16, shared = 6 * 512;
  EXPECT_DOUBLE_EQ(layer_bytes(run), rest + shared + 4 * (2 * 512 + 6 * 256));
  run.model.layers.back().mlp.expert_gated = false;
  EXPECT_DOUBLE_EQ(layer_bytes(run), rest + 4 * 512 + 4 * (2 * 512 + 6 * 256));
  run.megatron.weighs_inside_experts.set(false);
  EXPECT_DOUBLE_EQ(layer_bytes(run), rest + 4 * 512 + 4 * (2 * 512 + 4 * 256 + 2 * 512));
}

// Ranks of an expert group are uneven; one rank has all rows.
TEST(MegatronLayers, ExpertsOfAGroupAreUneven) {
  FrameworkRun run = small_run();
  run.model.layers.back().mlp = experts();
  const double even = layer_bytes(run), rows = 4 * (2 * 512 + 6 * 256);
  run.ep = 4;
  EXPECT_NEAR(layer_bytes(run), even + 0.1 * rows, 1e-6);
  run.expert_imbalance.set(1.0);
  EXPECT_DOUBLE_EQ(layer_bytes(run), even);
}

TEST(MegatronLayers, RecomputedModules) {
  FrameworkRun run = small_run();
  run.model.layers.back().mlp = experts();
  const double kept = layer_bytes(run);
  run.megatron.recomputed_modules = {"moe_act"};  // what the activation reads and writes is made of the rows' 2 h
  EXPECT_DOUBLE_EQ(layer_bytes(run), kept - 4 * 2 * 256);
  run.megatron.recomputed_modules = {"layernorm"};  // the norm before the experts alone is a module of its own
  EXPECT_DOUBLE_EQ(layer_bytes(run), kept - 2 * 512);
  run.megatron.recomputed_modules = {"moe"};
  EXPECT_DOUBLE_EQ(layer_bytes(run), kDense - 6 * 2048);
  run.megatron.recomputed_modules = {"mlp"};
  EXPECT_DOUBLE_EQ(megatron_layer_bytes(run, run.model.layers.front()), kDense - 6 * 2048);
}

TEST(MegatronLayers, OffloadedModules) {
  FrameworkRun run = small_run();
  run.megatron.offloaded_modules = {"core_attn", "attn_proj", "attn_norm"};
  EXPECT_DOUBLE_EQ(layer_bytes(run), kDense - 6 * 512 - 2 * 512 - 2 * 512);
}

// Inputs of the four linears in fewer bytes: qkv h, output h, gate and up h, down f.
TEST(MegatronLayers, ScaledInputs) {
  FrameworkRun run = small_run();
  run.fp8 = true;
  const double inputs = 3 * 512 + 2048;
  EXPECT_DOUBLE_EQ(layer_bytes(run), kDense - inputs);
  run.megatron.recipe.set(ScalingRecipe::kMxfp8);
  EXPECT_DOUBLE_EQ(layer_bytes(run), kDense - inputs * (1 - 1.0 / 32));
  run.megatron.recipe.set(ScalingRecipe::kNvfp4);
  EXPECT_DOUBLE_EQ(layer_bytes(run), kDense - inputs * (1.5 - 1.0 / 16));
}

TEST(MegatronLayers, LatentAttention) {
  FrameworkRun run = small_run();
  MixerSpec& m = run.model.layers.back().mixer;
  m.kind = MixerKind::kLatentAttention;
  m.q_lora_rank = 256;
  m.kv_lora_rank = 128;
  m.qk_nope_head_dim = m.v_head_dim = 64;
  m.qk_rope_head_dim = 32;
  const double wide = 8 * (4 * 96 + 2 * 64), rest = kDense - 8 * 512 + 2 * 512 + 2 * (256 + 128) + 2 * 32;
  EXPECT_DOUBLE_EQ(layer_bytes(run), rest + wide + 2 * (256 + 128));
  run.megatron.recomputed_modules = {"mla_up_proj"};  // latents before their norms remain
  EXPECT_DOUBLE_EQ(layer_bytes(run), rest);
}

// Mamba-2 of 16 heads of 64, 8 groups of 128 states: the projection's output, the scan's and the gated norm's.
TEST(MegatronLayers, Mamba) {
  FrameworkRun run = small_run();
  LayerSpec& layer = run.model.layers.back();
  layer.single_norm = true;
  layer.mlp.kind = MlpKind::kNone;
  layer.mixer = {};
  layer.mixer.kind = MixerKind::kMamba2;
  layer.mixer.ssm_heads = 16;
  layer.mixer.ssm_head_dim = 64;
  layer.mixer.ssm_groups = 8;
  layer.mixer.ssm_state = 128;
  EXPECT_DOUBLE_EQ(layer_bytes(run), 4.0 * 512 + 2 * (2 * 1024 + 2 * 1024 + 16) + 4 * 1024);
}

// Weights of the two layers' linears: 4 h h and 3 h f each.
constexpr double kLinears = 2.0 * (4 * 512 * 512 + 3 * 512 * 2048);
constexpr double kRest = 2.0 * 1024 * 512 + 5 * 512;  // table, output matrix, norms

TEST(MegatronStates, ScaledWeights) {
  FrameworkRun run = small_run();
  run.fp8 = true;
  expect_line(profile_memory(run), "weights", 2 * (kLinears + kRest));
  expect_line(profile_memory(run), "quantised weights", 2 * kLinears);  // both layouts on Hopper
  run.gpu = "b200-sxm-180gb";
  expect_line(profile_memory(run), "quantised weights", kLinears);
  run.megatron.recipe.set(ScalingRecipe::kMxfp8);
  expect_line(profile_memory(run), "quantised weights", (2 + 2.0 / 32) * kLinears);
  run.megatron.recipe.set(ScalingRecipe::kNvfp4);
  expect_line(profile_memory(run), "quantised weights", (1 + 2.0 / 16) * kLinears);
  run.megatron.fp8_weights.set(true);
  expect_line(profile_memory(run), "weights", 2 * kRest);
}

TEST(MegatronStates, Muon) {
  FrameworkRun run = small_run();
  run.megatron.muon.set(true);
  expect_line(profile_memory(run), "optimizer", 8 * kLinears + 12 * kRest);
  run.zero = 1;
  run.dp = 4;
  expect_line(profile_memory(run), "optimizer", (8 * kLinears + 12 * kRest) / 4);
  run.megatron.whole_adam.set(true);
  expect_line(profile_memory(run), "optimizer", 8 * kLinears / 4 + 12 * kRest);
}

TEST(MegatronStates, SmallerMomentsAndTheHost) {
  FrameworkRun run = small_run();
  run.optimizer_state_bits.set(16);
  expect_line(profile_memory(run), "optimizer", 8 * (kLinears + kRest));
  run.optimizer_state_bits.set(8);
  expect_line(profile_memory(run), "optimizer", 6 * (kLinears + kRest));
  run.optimizer_on_host.set(true);
  EXPECT_EQ(line(profile_memory(run), "optimizer"), 0);
}

// Shards of weights, gradients and optimizer; two layers and both tables are whole while they are used.
TEST(MegatronStates, Fsdp) {
  FrameworkRun run = small_run();
  run.zero = 3;
  run.dp = 4;
  run.megatron.fsdp.set(true);
  const ProfileMemory memory = profile_memory(run);
  expect_line(memory, "weights", 2 * (kLinears + kRest) / 4);
  expect_line(memory, "gradients", 4 * (kLinears + kRest) / 4);
  expect_line(memory, "optimizer", 12 * (kLinears + kRest) / 4);
  expect_line(memory, "gathered weights", 2 * (kLinears + 4 * 512 + 2.0 * 1024 * 512));
}

// A module: one layer more, a projection of 2 h to h, three norms; its loss keeps an fp32 softmax.
TEST(MegatronStates, MultiTokenPrediction) {
  FrameworkRun run = small_run();
  const double before = static_cast<double>(line(profile_memory(run), "weights"));
  run.megatron.mtp_layers.set(1);
  const ProfileMemory memory = profile_memory(run);
  const double module = kLinears / 2 + 2 * 512 + 2 * 512 * 512 + 3 * 512;
  EXPECT_DOUBLE_EQ(static_cast<double>(line(memory, "weights")), before + 2 * module);
  expect_line(memory, "multi-token prediction", (kDense + 16 * 512) * 1024);
  expect_line(memory, "its losses", 4.0 * 1024 * 1024);
}

// LoRA of rank 16 on q, k, v and o (NeMo, Megatron-Bridge): 16 x (h + 3 h) and 16 x (h + h) a layer; frozen weights
// have no gradients, and of the inputs those of adapted linears are kept: h of the MLP's and f less.
TEST(MegatronStates, Adapter) {
  FrameworkRun run = small_run();
  run.trains_adapter = true;
  run.rank = 16;
  run.targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
  const ProfileMemory memory = profile_memory(run);
  expect_line(memory, "weights", 2 * (kLinears + kRest));
  EXPECT_EQ(line(memory, "gradients"), 0);
  EXPECT_EQ(line(memory, "optimizer"), 0);
  expect_line(memory, "adapter", 18.0 * 2 * 16 * (4 * 512 + 2 * 512));
  expect_line(memory, "activations", 2 * (kDense - 2 * 512 - 2 * 2048) * 1024);
}

// The optimizer's own copies of two-byte gradients are there when the activations are not.
TEST(MegatronStates, CopiesOfGradientsAtTheStep) {
  FrameworkRun run = small_run();
  run.sequence = 8;
  run.gradient_dtype.set(DType::kBFloat16);
  const ProfileMemory memory = profile_memory(run);
  EXPECT_EQ(memory.peak().name, "optimizer");
  expect_line(memory, "gradients", 2 * (kLinears + kRest));
  expect_line(memory, "fp32 copies of gradients", 4 * (kLinears + kRest));
}

}  // namespace
}  // namespace fivefold
