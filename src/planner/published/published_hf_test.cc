// What rows of transformers' sources say beside their columns.
#include <gtest/gtest.h>

#include "planner/published/published_run.h"

namespace fivefold {
namespace {

PublishedRun row(const std::string& source, std::map<std::string, std::string, std::less<>> cells) {
  PublishedRun row;
  row.where = "runs.csv:1";
  row.fields = {{"id", "x"},         {"source", source},   {"model", "Mistral-7B"}, {"hidden", "4096"},
                {"layers", "32"},    {"heads", "32"},      {"kv_heads", "8"},       {"ffn", "14336"},
                {"vocab", "32000"},  {"gpu", "A100"},      {"n_gpus", "1"},         {"dp", "1"},
                {"seq_len", "4096"}, {"micro_batch", "4"}, {"precision", "bf16"},   {"method", "lora"},
                {"lora_rank", "16"}};
  for (auto& [column, text] : cells) row.fields[column] = text;
  return row;
}
FrameworkRun run_of(const PublishedRun& row) {
  const Result<FrameworkRun> run = framework_run(row);
  EXPECT_TRUE(run.ok());
  return *run;
}

TEST(PublishedHf, FmsNamesItsKernels) {
  const std::string source = "fms_acceleration_finetune";
  FrameworkRun run = run_of(row(source, {{"quant", "nf4-bnb"},
                                         {"precision", "bf16-amp bfloat16"},
                                         {"notes",
                                          "file=refs/a100_80gb_liger; framework=accelerated-peft-bnb-foak; "
                                          "target_modules=q_proj k_proj; train_runtime_s=1"}}));
  EXPECT_EQ(run.frozen, FrozenWeights::kNf4Double);
  EXPECT_EQ(run.cross_entropy, CrossEntropyKernel::kInPlace);
  EXPECT_TRUE(run.hf.fused_norms && run.hf.fused_adapters && run.hf.autocast && run.hf.repeats_kv);
  EXPECT_EQ(run.targets, (std::vector<std::string>{"q_proj", "k_proj"}));
  run = run_of(row(source, {{"method", "full"},
                            {"n_gpus", "4"},
                            {"dp", "4"},
                            {"zero_stage", "fsdp-full"},
                            {"precision", "bf16-amp bfloat16"},
                            {"notes", "file=refs/a100_80gb_liger; framework=foak-fast-kernels-liger"}}));
  EXPECT_EQ(run.weight_dtype, DType::kFloat32);
  EXPECT_EQ(run.cross_entropy, CrossEntropyKernel::kChunked);
  run = run_of(row(source, {{"precision", "pure bfloat16"}, {"notes", "file=refs/a100_80gb; framework=none"}}));
  EXPECT_FALSE(run.hf.autocast || run.hf.fused_norms || run.hf.fused_adapters || run.hf.repeats_kv);
  EXPECT_EQ(run.cross_entropy, CrossEntropyKernel::kEager);
  EXPECT_FALSE(framework_run(row(source, {{"notes", "file=refs_orca/a100_80gb_pf; framework=none"}})).ok());
}

TEST(PublishedHf, PeftMethodsAreKinds) {
  const auto peft = [](const std::string& method, const std::string& file) {
    return run_of(row("peft_metamathqa_llama32_3b",
                      {{"method", method},
                       {"notes", "file " + file + "; trainable params 614400; target_modules ['v_proj', 'q_proj']"}}));
  };
  FrameworkRun run = peft("lora", "lora-dora.json");
  EXPECT_TRUE(run.hf.dora && run.trains_adapter);
  EXPECT_EQ(run.targets, (std::vector<std::string>{"v_proj", "q_proj"}));
  EXPECT_EQ(run.hf.trained, 614400);
  EXPECT_EQ(peft("loha", "loha.json").hf.adapter, AdapterKind::kWeightUpdate);
  EXPECT_EQ(peft("ia3", "ia3.json").hf.adapter, AdapterKind::kScale);
  EXPECT_EQ(peft("prompt_tuning", "prompt.json").hf.virtual_tokens, 150);  // 614,400 / 4096
  EXPECT_TRUE(peft("something new", "x.json").hf.adapter.assumed);
  EXPECT_FALSE(peft("full", "full.json").trains_adapter);
}

TEST(PublishedHf, LitGptQwenAndSwift) {
  FrameworkRun run = run_of(
      row("litgpt_finetune_a100_40g",
          {{"method", "adapter_v2+bnb.nf4-dq"}, {"quant", "bnb.nf4-dq"}, {"notes", "trainable params 4,279,744"}}));
  EXPECT_EQ(run.hf.trained, 4279744);
  EXPECT_EQ(run.hf.adapter, AdapterKind::kFullScale);
  EXPECT_EQ(run.frozen, FrozenWeights::kNf4Double);
  run = run_of(row("qwen_finetune_a100", {{"model", "Qwen-14B"}, {"vocab", ""}, {"notes", "LoRA (emb); nodes=1"}}));
  EXPECT_EQ(run.model.vocab, 152064);
  EXPECT_TRUE(run.hf.trains_embeddings);
  EXPECT_EQ(run.rank, 64);
  run = run_of(
      row("ms_swift_legacy_finetune_a100",
          {{"notes", "other={'Use Flash Attn': '✘', 'Gradient Checkpointing': '✘'}; data length mean 3234 (q)"}}));
  EXPECT_EQ(run.attention, AttentionKernel::kUnfused);
  EXPECT_EQ(run.checkpointing, Checkpointing::kNone);
  EXPECT_EQ(run.hf.typical_length, 3234);
}

TEST(PublishedHf, ScriptsOfSwift) {
  const auto script = [](const std::string& notes) {
    return row("ms_swift_examples", {{"n_gpus", "4"}, {"dp", "4"}, {"zero_stage", "3"}, {"notes", notes}});
  };
  const FrameworkRun run = run_of(script("examples/train/packing/liger_kernel.sh; liger kernel"));
  EXPECT_TRUE(run.hf.fused_norms && run.hf.deepspeed);
  EXPECT_EQ(run.cross_entropy, CrossEntropyKernel::kChunked);
  EXPECT_EQ(run.targets.size(), 7U);
  EXPECT_FALSE(framework_run(script("examples/megatron/lora/moe.sh")).ok());
  EXPECT_FALSE(framework_run(script("examples/train/x.sh; 80 = \"needs an 80GB card\"")).ok());
}

}  // namespace
}  // namespace fivefold
