// Published runs whose bytes were worked out line by line; the measured peaks are those of the sources that docs/
// profiles.md names.
#include <gtest/gtest.h>

#include <cmath>

#include "planner/profiles/framework_run.h"
#include "planner/profiles/profiles_testing.h"

namespace fivefold {
namespace {

LayerSpec llama_layer(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t ffn) {
  LayerSpec layer;
  layer.mixer.num_heads = heads;
  layer.mixer.num_kv_heads = kv_heads;
  layer.mixer.head_dim = head_dim;
  layer.mlp.ffn = ffn;
  return layer;
}

// GPT's: biases, LayerNorm, GELU, learned positions.
LayerSpec gpt_layer(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t ffn) {
  LayerSpec layer = llama_layer(heads, kv_heads, head_dim, ffn);
  layer.norm = {.kind = NormKind::kLayer, .bias = true};
  layer.mixer.qkv_bias = layer.mixer.out_bias = true;
  layer.mlp.kind = MlpKind::kPlain;
  layer.mlp.bias = true;
  return layer;
}

ModelSpec model_of(int64_t layers, int64_t hidden, int64_t vocab, bool tied, const LayerSpec& layer) {
  ModelSpec model;
  model.hidden = hidden;
  model.vocab = vocab;
  model.tied_embeddings = tied;
  model.final_norm = layer.norm;
  model.layers.assign(static_cast<size_t>(layers), layer);
  return model;
}

// SimuMax's Llama-3-70B of 12 layers, B200, two stages: the first has two microbatches in flight and no logits.
TEST(MegatronProfile, TwoStagesOfLlama70b) {
  FrameworkRun run;
  run.model = model_of(12, 8192, 128256, false, llama_layer(64, 8, 128, 28672));
  run.gpu = "b200-sxm-180gb";
  run.dp = 4;
  run.pp = 2;
  run.zero = 1;
  run.sequence = 4096;
  run.microbatches = 4;
  run.cross_entropy.set(CrossEntropyKernel::kTransformerEngine);
  run.dummy_weight_gradients.set(true);
  const ProfileMemory memory = profile_memory(run);
  expect_line(memory, "weights", 12'369'199'104.0);
  expect_line(memory, "gradients", 24'738'398'208.0);
  expect_line(memory, "optimizer", 18'553'798'656.0);
  expect_line(memory, "activations", 13'501'464'576.0);
  expect_line(memory, "dummy weight gradients", 1'711'276'032.0);
  EXPECT_EQ(line(memory, "logits"), 0);
  expect_peak(memory, 71'457'518'387.0, 0.005);
}

// The reference's logits have the vocabulary as it is; Megatron pads it to 128 x 8.
TEST(MegatronProfile, TensorAndSequenceParallelLlama405b) {
  FrameworkRun run;
  run.model = model_of(4, 16384, 128256, false, llama_layer(128, 16, 128, 53248));
  run.gpu = "b200-sxm-180gb";
  run.tp = 8;
  run.sp = true;
  run.zero = 1;
  run.sequence = 4096;
  run.microbatches = 4;
  run.cross_entropy.set(CrossEntropyKernel::kTransformerEngine);
  run.dummy_weight_gradients.set(true);
  const ProfileMemory memory = profile_memory(run);
  expect_line(memory, "weights", 4'278'484'992.0);
  expect_line(memory, "gradients", 8'556'969'984.0);
  expect_line(memory, "optimizer", 25'670'909'952.0);
  expect_line(memory, "activations", 1'074'790'400.0);
  expect_line(memory, "logits", 131'334'144.0 * 129024 / 128256);
  expect_line(memory, "dummy gradient of the output matrix", 525'336'576.0 * 129024 / 128256);
  expect_line(memory, "dummy weight gradients", 805'306'368.0);
  expect_peak(memory, 41'414'222'152.0, 0.005);
}

// Yeung et al.'s pipelines: fp16, gradients in two bytes, eight microbatches in flight on the first of eight stages;
// the figure is of reserved bytes. N: 4 layers of 12 h h + 13 h, 128,000 + 2,048 rows of h: 852,492,288.
FrameworkRun vocabulary_parallel_run() {
  FrameworkRun run;
  run.model = model_of(32, 3072, 128000, false, gpt_layer(24, 24, 128, 12288));
  run.model.learned_positions = true;
  run.model.max_positions = 2048;
  run.gpu = "a100-sxm-80gb";
  run.pp = 8;
  run.sequence = 2048;
  run.microbatches = 128;
  run.gradient_dtype.set(DType::kFloat16);
  run.megatron.figure.set(MemoryFigure::kReserved);
  return run;
}

TEST(MegatronProfile, VocabularyOf128kOnTheFirstOfEightStages) {
  const ProfileMemory memory = profile_memory(vocabulary_parallel_run());
  expect_line(memory, "weights", 1'704'984'576.0);
  expect_line(memory, "gradients", 1'704'984'576.0);
  expect_line(memory, "optimizer", 10'229'907'456.0);
  expect_line(memory, "activations", 6'448'742'400.0);
  expect_line(memory, "fp32 copies of gradients", 3'409'969'152.0);
  // The largest activation, 2 B x 12,288 x 2,048, is 50.3 MB: it serves h x h in fp32 (37.7 MB), norms and biases.
  expect_line(memory, "of them in cached blocks", -(12.0 * 4 * (3072 * 3072 + 13 * 3072) + 2.0 * 128000 * 3072));
  expect_peak(memory, 22'548'578'304.0, 0.01);
}

// A sixteenth of both tables, one microbatch more in flight, and what the passes of the vocabulary hand on.
TEST(MegatronProfile, VocabularyOnAllStages) {
  FrameworkRun run = vocabulary_parallel_run();
  run.vocabulary_stages.set(VocabularyStages::kOneMore);
  const ProfileMemory memory = profile_memory(run);
  const double n = 4.0 * (12 * 3072 * 3072 + 13 * 3072) + 2048 * 3072 + 2.0 * 16000 * 3072;
  expect_line(memory, "weights", 2 * n);
  expect_line(memory, "activations", 6'448'742'400.0 / 8 * 9);
  expect_line(memory, "collectives of the vocabulary", 16.0 * 3072 * 2048);
  expect_line(memory, "logits", 6.0 * 2048 * 16000);
  expect_peak(memory, 17.56 * 0x1p30, 0.03);
}

// Megatron-LM's recorded 7B, four stages of eight chunks: the last rank has (v - 1) p + 1 = 29 chunks in flight.
TEST(MegatronProfile, LastRankOfInterleavedStages) {
  FrameworkRun run;
  run.model = model_of(32, 4096, 131073, false, gpt_layer(32, 8, 128, 16384));
  run.gpu = "a100-sxm-80gb";
  run.dp = 2;
  run.pp = 4;
  run.vpp = 8;
  run.zero = 1;
  run.sequence = 8192;
  run.microbatches = 4;
  run.dropout.set(true);
  run.reported = ReportedRank::kLast;
  const ProfileMemory memory = profile_memory(run);
  expect_line(memory, "activations", 30'195'843'072.0);
  expect_line(memory, "logits", 6.0 * 8192 * 131200);
  expect_peak(memory, 60'489'063'119.0, 0.01);
}

// The tiny test: scores and their masks are kept, half of all bytes.
TEST(MegatronProfile, UnfusedAttentionKeepsScores) {
  FrameworkRun run;
  run.model = model_of(12, 512, 50257, true, gpt_layer(8, 8, 64, 2048));
  run.model.learned_positions = true;
  run.model.max_positions = 1024;
  run.gpu = "h100-sxm-80gb";
  run.dp = 8;
  run.zero = 1;
  run.sequence = 1024;
  run.micro = 4;
  run.dropout.set(true);
  run.attention.set(AttentionKernel::kUnfused);
  const ProfileMemory memory = profile_memory(run);
  expect_line(memory, "weights", 128'219'136.0);
  // 4 a bytes of log-sum-exp less than the reference: scores need none.
  expect_line(memory, "activations", 2'870'476'800.0 - 4.0 * 8 * 4096 * 12);
  expect_line(memory, "logits", 6.0 * 4096 * 50304);
  expect_peak(memory, 4'702'430'843.0, 0.01);
}

// Six layers, token table and loss on eight virtual stages: the last one has no layer, the chunk before it on the same
// rank has four microbatches of its one in flight.
TEST(MegatronProfile, ChunksOfTheLastRankDiffer) {
  FrameworkRun run;
  run.model = model_of(6, 512, 50257, false, gpt_layer(8, 8, 64, 2048));
  run.dp = 2;
  run.pp = 4;
  run.vpp = 2;
  run.sequence = 1024;
  run.micro = 4;
  run.microbatches = 4;
  run.stage_layers = {0, 1, 1, 1, 1, 1, 1, 0};
  run.dropout.set(true);
  run.attention.set(AttentionKernel::kUnfused);
  run.reported = ReportedRank::kLast;
  const ProfileMemory memory = profile_memory(run);
  // A layer: 10 h + (2 x 3 + 2) h + 4 f + 5 a s bytes a token.
  const double layer = 10.0 * 512 + 8 * 512 + 4 * 2048 + 5.0 * 8 * 1024;
  expect_line(memory, "activations", 4 * layer * 4096);
  run.stage_layers = {1, 2, 2, 1};  // the same, of whole stages
  expect_line(profile_memory(run), "activations", 4 * layer * 4096);
  run.megatron.chunk_group.set(5);
  expect_line(profile_memory(run), "activations", 4 * layer * 4096);  // there are four microbatches
  run.microbatches = 20;
  expect_line(profile_memory(run), "activations", 5 * layer * 4096);
}

TEST(MegatronProfile, GradientsOfTheOutputMatrixThatWait) {
  FrameworkRun run;
  run.model = model_of(2, 512, 1024, true, gpt_layer(8, 8, 64, 2048));
  run.sequence = 1024;
  run.megatron.deferred_head_gradients.set(2);
  expect_line(profile_memory(run), "deferred gradients of the output matrix", 2 * 1024.0 * (2 * 1024 + 2 * 512));
}

// The distributed optimizer in two whole copies: 12 B / (dp / 2).
TEST(MegatronProfile, InstancesOfTheOptimizer) {
  FrameworkRun run;
  run.model = model_of(2, 512, 1024, true, gpt_layer(8, 8, 64, 2048));
  run.sequence = 1024;
  run.dp = 4;
  run.zero = 1;
  const int64_t weights = line(profile_memory(run), "weights");
  expect_line(profile_memory(run), "optimizer", 6.0 * static_cast<double>(weights) / 4);
  run.megatron.optimizer_instances.set(2);
  expect_line(profile_memory(run), "optimizer", 6.0 * static_cast<double>(weights) / 2);
}

// flash-attn's output is kept in its layout and in the next product's, unless there is one sequence only.
TEST(MegatronProfile, OutputOfFlashAttentionIsKeptTwice) {
  FrameworkRun run;
  run.model = model_of(1, 512, 1024, true, gpt_layer(8, 8, 64, 2048));
  run.sequence = 1024;
  run.micro = 2;
  const int64_t once = line(profile_memory(run), "activations");
  run.megatron.flash_library.set(true);
  EXPECT_EQ(line(profile_memory(run), "activations") - once, 2048 * 2 * 512);
  run.micro = 1;
  EXPECT_EQ(line(profile_memory(run), "activations"), once / 2);
}

TEST(MegatronProfile, SaysWhatItAssumed) {
  FrameworkRun run;
  run.model = model_of(2, 512, 1000, true, gpt_layer(8, 8, 64, 2048));
  run.sequence = 64;
  EXPECT_EQ(profile_memory(run).assumed.size(), 3u);
  run.cross_entropy.set(CrossEntropyKernel::kUnfused);
  run.attention.set(AttentionKernel::kFlash);
  run.gradient_dtype.set(DType::kFloat32);
  EXPECT_TRUE(profile_memory(run).assumed.empty());
}

}  // namespace
}  // namespace fivefold
