// What other projects' files are like, written anew: the constructs of Megatron-LM examples/llama and examples/mixtral
// (commit d98e8a64), torchtitan models/llama3/config_registry.py (b5bcd76c) and train_configs/llama3_8b.toml (v0.2.0),
// DeepSpeedExamples step1_supervised_finetuning (45b4b715), axolotl examples/llama-3 (067b021c) and TRL's
// accelerate_configs (f2cd5771).
#include <gtest/gtest.h>

#include <algorithm>

#include "exporters/imported_run.h"

namespace fivefold {
namespace {

Imported read(const std::string& name, const std::string& text, ImportOptions options = {}) {
  return import_run(detect_target(text, name).value_or(ForeignTarget::kMegatron), text, name, options);
}

std::string problem(const Imported& imported) {
  return imported.errors.empty() ? "" : imported.errors.front().message();
}

constexpr const char* kMegatron = R"(#!/bin/bash
NODES=${SLURM_NNODES:-2}
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8   # as Llama 3
    --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --rotary-base 500000
    --untie-embeddings-and-output-weights --seq-length 8192 --max-position-embeddings 8192
)
TRAIN="--micro-batch-size 1 --global-batch-size 128 --bf16 --lr 3e-4 --min-lr 3e-5 \
  --train-iters 1000 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
torchrun --nproc_per_node 8 --nnodes $NODES pretrain_gpt.py "${MODEL_ARGS[@]}" $TRAIN \
    --tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer \
    --tokenizer-type Llama3Tokenizer --frobnicate 3 --log-interval 10
)";

TEST(Import, MegatronArguments) {
  const Imported imported = read("run.sh", kMegatron);
  ASSERT_EQ(problem(imported), "");
  const RunConfig& config = imported.config;
  EXPECT_EQ(config.model.name, "llama-3-8b");  // by its sizes
  EXPECT_EQ(config.parallel.dp, 4);            // 16 / 4
  EXPECT_EQ(config.parallel.tp, 4);
  EXPECT_TRUE(config.parallel.sp);
  EXPECT_EQ(config.parallel.zero, 1);
  EXPECT_EQ(config.recompute.kind, RecomputeKind::kFull);
  EXPECT_EQ(config.lr.schedule, LrScheduleKind::kLinear);  // Megatron-LM's default
  EXPECT_DOUBLE_EQ(config.lr.min_ratio, 0.1);
  EXPECT_EQ(config.framework.name, Framework::kMegatron);
  ASSERT_EQ(imported.unknown.size(), 1u);
  EXPECT_EQ(imported.unknown[0].name, "frobnicate");
  EXPECT_EQ(imported.unknown[0].where, "run.sh:13");
  EXPECT_EQ(imported.assumed[0].name, "vocabulary");
}

TEST(Import, RefusesWhatDoesNotDivide) {
  EXPECT_EQ(problem(read("run.sh", kMegatron, {.gpus = 6})),
            "--gpus: 6 GPUs are no multiple of tp x pp x cp = 4 x 1 x 1 = 4 (use 4 GPUs)");
  EXPECT_EQ(problem(read("run.sh", kMegatron, {.gpus = 12})),
            "--gpus: a global batch of 128 is no multiple of micro x dp = 1 x 3 = 3 (use 126)");
}

TEST(Import, NamesWhatIsMissing) {
  EXPECT_NE(problem(read("run.sh",
                         "torchrun --nproc_per_node 8 --nnodes $N pretrain_gpt.py --num-layers 2 --hidden-size 64 "
                         "--num-attention-heads 4 --seq-length 64 --micro-batch-size 1 --vocab-size 100\n"))
                .find("--env N=VALUE"),
            std::string::npos);
  EXPECT_NE(problem(read("run.sh",
                         "torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 2 --hidden-size 64 "
                         "--num-attention-heads 4 --seq-length 64 --micro-batch-size 1\n"))
                .find("--vocab N"),
            std::string::npos);
  EXPECT_EQ(problem(read("run.sh",
                         "torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers two --hidden-size 64 "
                         "--num-attention-heads 4 --seq-length 64 --micro-batch-size 1 --vocab-size 100\n")),
            "run.sh:1: num-layers: `two` is not a number");
}

TEST(Import, RefusesValuesThatNoKeyHolds) {
  const ImportOptions options{.model = "llama-2-7b", .gpus = 8};
  EXPECT_NE(problem(read("ds.json",
                         "{\"zero_optimization\": {\"stage\": 1}, \"optimizer\": {\"params\": {\"eps\": 0}}}", options))
                .find("optimizer.eps"),
            std::string::npos);
  EXPECT_NE(problem(read("ds.json", "{\"train_batch_size\": 1e309}", options)), "");
}

TEST(Import, MegatronStages) {
  const std::string base =
      "torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 10 --hidden-size 64 --num-attention-heads 4 "
      "--seq-length 64 --micro-batch-size 1 --vocab-size 100 --pipeline-model-parallel-size 4 ";
  using Layers = std::vector<int64_t>;
  EXPECT_EQ(read("run.sh", base + "--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 1\n")
                .config.parallel.stages.layers,
            (Layers{1, 4, 4, 1}));
  EXPECT_EQ(read("run.sh", base + "--pipeline-model-parallel-layout 'Et|(tt|)*4,tL'\n").config.parallel.vpp, 1);
  EXPECT_EQ(read("run.sh", base + "--pipeline-model-parallel-layout 'Ett|t*4|tt|ttL'\n").config.parallel.stages.layers,
            (Layers{2, 4, 2, 2}));
  EXPECT_NE(problem(read("run.sh", base + "--pipeline-model-parallel-layout 'E?'\n")), "");
}

TEST(Import, TorchtitanPythonFunctions) {
  const std::string text = R"(from torchtitan.models.llama3 import model_registry

def base() -> Trainer.Config:
    model_spec = model_registry("8B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    return Trainer.Config(
        model_spec=model_spec,  # of the registry
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=2, seq_len=4 * 2048, steps=1_000),
        parallelism=ParallelismConfig(tensor_parallel_degree=4, data_parallel_shard_degree=2),
        activation_checkpoint=FullAC.Config(),
    )

def wide() -> Trainer.Config:
    config = base()
    config.parallelism.data_parallel_shard_degree = 16
    config.activation_checkpoint = None
    return config
)";
  const Imported wide = read("registry.py", text);
  ASSERT_EQ(problem(wide), "");  // base is called by another, so wide is meant
  EXPECT_EQ(wide.config.parallel.dp, 16);
  EXPECT_EQ(wide.config.batch.sequence, 8192);
  EXPECT_EQ(wide.config.run.steps, 1000);
  EXPECT_EQ(wide.config.precision.compute, ComputeKind::kFp8);
  EXPECT_EQ(wide.config.recompute.kind, RecomputeKind::kNone);
  EXPECT_EQ(read("registry.py", "def f():\n    return Trainer.Config(training=TrainingConfig(steps=(1))\n")
                .errors.front()
                .where,
            "registry.py:2");
}

TEST(Import, TorchtitanToml) {
  const Imported imported = read("llama3.toml",
                                 "[model]\nname = \"llama3\"\nflavor = \"70B\"\n[training]\nlocal_batch_size = 8\n"
                                 "seq_len = 8192\nsteps = 1000\n[parallelism]\ntensor_parallel_degree = 8\n"
                                 "[activation_checkpoint]\nmode = \"full\"\n",
                                 {.gpus = 256});
  ASSERT_EQ(problem(imported), "");
  EXPECT_EQ(imported.config.model.name, "llama-3.1-70b");
  EXPECT_EQ(imported.config.parallel.dp, 32);
  EXPECT_EQ(imported.config.batch.global, 256);
}

TEST(Import, DeepspeedJsonAndItsContradictions) {
  const std::string good =
      "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2,\n \"gradient_accumulation_steps\": 4,\n"
      " \"bf16\": {\"enabled\": true},\n \"zero_optimization\": {\"stage\": 3}}";
  const ImportOptions options{.model = "llama-2-7b", .gpus = 8, .sequence = 2048};
  const Imported imported = read("ds.json", good, options);
  ASSERT_EQ(problem(imported), "");
  EXPECT_EQ(imported.config.parallel.zero, 3);
  EXPECT_EQ(imported.config.framework.name, Framework::kDeepspeed);
  EXPECT_EQ(problem(read("ds.json", good, {.model = "llama-2-7b", .gpus = 4})),
            "ds.json:1: train_batch_size = 64 is not micro-batch x accumulation x replicas = 2 x 4 x 4 (use 32)");
  EXPECT_EQ(read("ds.json", "{\n\"a\": 1,\n}", options).errors.front().where, "ds.json:3");
}

TEST(Import, AxolotlYaml) {
  const std::string text =
      "base_model: NousResearch/Meta-Llama-3.1-8B\nadapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_alpha: 16\n"
      "lora_target_linear: true\nsequence_len: 4096\nsample_packing: true\nmicro_batch_size: 2\n"
      "gradient_accumulation_steps: 4\noptimizer: adamw_bnb_8bit\nlearning_rate: 2e-4\nbf16: auto\n"
      "gradient_checkpointing: true\nwandb_project:\nstrange_key: 1\n";
  const Imported imported = read("q.yml", text, {.gpus = 1});
  ASSERT_EQ(problem(imported), "");
  EXPECT_EQ(imported.config.method.kind, MethodKind::kQlora);
  EXPECT_EQ(imported.config.method.rank, 32);
  EXPECT_EQ(imported.config.batch.global, 8);
  EXPECT_EQ(imported.config.precision.optimizer_state, OptimizerStateKind::k8Bit);
  ASSERT_EQ(imported.unknown.size(), 1u);
  EXPECT_EQ(imported.unknown[0].where, "q.yml:16");
  EXPECT_EQ(read("q.yml", "base_model: [\n").errors.size(), 1u);
  EXPECT_EQ(read("q.yml",
                 "a: &a [1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nbase_model: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
                 "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: "
                 "[*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n")
                .errors.front()
                .problem,
            "stands for more values than a configuration has");
}

TEST(Import, AccelerateFileBesideTheScript) {
  ImportOptions options;
  options.read_file = [](const std::string& name) -> std::optional<std::string> {
    if (name != "fsdp.yaml") return std::nullopt;
    return "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2\n  "
           "fsdp_reshard_after_forward: false\n";
  };
  const Imported imported =
      read("run.sh",
           "accelerate launch --config_file fsdp.yaml -m trl.scripts.sft --model_name_or_path Qwen/Qwen3-8B "
           "--per_device_train_batch_size 2 --max_length 2048 --packing\n",
           options);
  ASSERT_EQ(problem(imported), "");
  EXPECT_EQ(imported.config.parallel.dp, 4);
  EXPECT_EQ(imported.config.parallel.zero, 2);
  EXPECT_EQ(imported.config.model.name, "qwen3-8b");
  EXPECT_NE(
      problem(read("run.sh", "accelerate launch --config_file gone.yaml train.py --model_name_or_path Qwen/Qwen3-8B\n",
                   options))
          .find("gone.yaml"),
      std::string::npos);
}

}  // namespace
}  // namespace fivefold
