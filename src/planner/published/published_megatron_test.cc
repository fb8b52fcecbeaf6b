// What rows of Megatron-LM state in columns and in the arguments of their notes.
#include <gtest/gtest.h>

#include "planner/published/published_run.h"

namespace fivefold {
namespace {

PublishedRun row_of(std::map<std::string, std::string, std::less<>> more) {
  PublishedRun row;
  row.where = "test";
  row.fields = {{"id", "megatron_lm_functional_tests-1"},
                {"source", "megatron_lm_functional_tests"},
                {"model", "megatron-test:gpt/one"},
                {"layers", "13"},
                {"hidden", "512"},
                {"heads", "8"},
                {"ffn", "2048"},
                {"vocab", "50257"},
                {"gated_ffn", "0"},
                {"seq_len", "1024"},
                {"micro_batch", "2"},
                {"global_batch", "32"},
                {"gpu", "H100-80GB"},
                {"n_gpus", "8"},
                {"tp", "4"},
                {"pp", "2"},
                {"precision", "bf16"},
                {"attn_impl", "auto/transformer_engine"}};
  for (auto& [key, value] : more) row.fields[key] = value;
  return row;
}

// E, twelve layers in pairs behind a single one, the prediction module and the loss alone: eight chunks on two ranks.
TEST(PublishedMegatron, PipelineLayout) {
  const FrameworkRun run =
      framework_run(row_of({{"notes", "mtp-num-layers=1;pipeline-model-parallel-layout=Et|(tt|)*6mL"}})).value();
  EXPECT_EQ(run.vpp, 4);
  EXPECT_EQ(run.stage_layers, (std::vector<int64_t>{1, 2, 2, 2, 2, 2, 2, 0}));
  EXPECT_EQ(run.megatron.mtp_layers, 1);
}

TEST(PublishedMegatron, LayersThatDivideOnlyWithTableAndLoss) {
  const FrameworkRun run = framework_run(row_of({{"layers", "14"}, {"pp", "4"}, {"tp", "2"}})).value();
  EXPECT_EQ(run.stage_layers, (std::vector<int64_t>{3, 4, 4, 3}));
  const Result<FrameworkRun> odd = framework_run(row_of({}));
  ASSERT_FALSE(odd.ok());
  EXPECT_EQ(odd.error().problem, "the stages' layers are not stated");
}

TEST(PublishedMegatron, LayersWithExperts) {
  const FrameworkRun run = framework_run(row_of({{"pp", "1"},
                                                 {"moe_experts", "8"},
                                                 {"moe_topk", "2"},
                                                 {"notes", "moe-grouped-gemm=True;moe-layer-freq=([0]*4+[1]*9)"}}))
                               .value();
  EXPECT_EQ(run.model.layers[3].mlp.kind, MlpKind::kPlain);
  EXPECT_EQ(run.model.layers[3].mlp.ffn, 2048);
  EXPECT_EQ(run.model.layers[4].mlp.kind, MlpKind::kMoe);
  EXPECT_TRUE(run.megatron.grouped_experts);
}

TEST(PublishedMegatron, HybridPattern) {
  const FrameworkRun run = framework_run(row_of({{"layers", "5"},
                                                 {"pp", "1"},
                                                 {"moe_experts", "8"},
                                                 {"notes", "hybrid-layer-pattern=ME*E-/*E;mamba-num-heads=16"}}))
                               .value();
  EXPECT_EQ(run.model.layers[0].mixer.kind, MixerKind::kMamba2);
  EXPECT_EQ(run.model.layers[0].mlp.kind, MlpKind::kNone);
  EXPECT_EQ(run.model.layers[1].mlp.kind, MlpKind::kMoe);
  EXPECT_EQ(run.model.layers[2].mixer.kind, MixerKind::kAttention);
  EXPECT_EQ(run.model.layers[4].mlp.kind, MlpKind::kPlain);
  EXPECT_FALSE(framework_run(row_of({{"notes", "hybrid-layer-pattern=ME*E"}, {"pp", "1"}})).ok());
}

TEST(PublishedMegatron, RecomputedModules) {
  const auto modules = [](const char* recompute, const char* notes) {
    const FrameworkRun run = framework_run(row_of({{"pp", "1"}, {"recompute", recompute}, {"notes", notes}})).value();
    return std::pair(run.checkpointing, run.megatron.recomputed_modules);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(modules("selective(attention core)", ""), std::pair(Checkpointing::kCoreAttention, Names{}));
  EXPECT_EQ(modules("selective", "recompute-modules=[moe_act layernorm]"),
            std::pair(Checkpointing::kNone, Names{"moe_act", "layernorm"}));
  EXPECT_EQ(modules("selective(moe_act,layernorm)", ""),
            std::pair(Checkpointing::kNone, Names{"moe_act", "layernorm"}));
}

// NVIDIA's recipes state neither the distributed optimizer nor bf16 gradients, Yeung et al.'s tables not what they are
// of.
TEST(PublishedMegatron, WhatSourcesLeaveOut) {
  const FrameworkRun recipe =
      framework_run(row_of({{"source", "mlperf_training_llm"}, {"pp", "1"}, {"precision", "fp8"}})).value();
  EXPECT_EQ(recipe.zero, 1);
  EXPECT_TRUE(recipe.sp);
  EXPECT_EQ(recipe.gradient_dtype.value, DType::kBFloat16);
  const FrameworkRun vocabulary = framework_run(row_of({{"source", "vocab_parallel_pp8_a100"}, {"pp", "1"}})).value();
  EXPECT_EQ(vocabulary.megatron.figure.value, MemoryFigure::kReserved);
  const Result<FrameworkRun> t5 = framework_run(row_of({{"model", "megatron-test:t5/one"}}));
  ASSERT_FALSE(t5.ok());
  EXPECT_EQ(t5.error().problem, "encoder-decoder models have no profile");
}

}  // namespace
}  // namespace fivefold
