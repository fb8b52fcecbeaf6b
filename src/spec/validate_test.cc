#include "spec/validate.h"

#include "base/text.h"
#include "spec/validate_testing.h"

namespace fivefold::test {
namespace {

// Planner case P30, exact sets.
TEST(Validate, UlyssesDegrees) {
  EXPECT_EQ(ulysses_degrees(40, 8), (std::vector<int64_t>{1, 2, 4, 8, 40}));
  EXPECT_EQ(ulysses_degrees(28, 4), (std::vector<int64_t>{1, 2, 4, 28}));
  EXPECT_EQ(ulysses_degrees(64, 8), (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64}));
}

TEST(Validate, LegalLayoutsPass) {
  const ModelSpec dense = dense_model();
  const std::pair<ModelSpec, Settings> cases[] = {
      {dense, {}},
      {dense, {"parallel.dp=8", "parallel.zero=3", "parallel.shard_size=4", "batch.global=64"}},
      {dense, {"parallel.tp=8", "parallel.sp=true", "parallel.pp=4", "parallel.dp=2", "batch.global=32"}},
      {dense, {"parallel.tp=32"}},                              // 8 KV heads, each on 4 ranks
      {dense, {"parallel.cp=16", "parallel.cp_kind=ulysses"}},  // 16 is a multiple of 8 KV heads
      {dense, {"parallel.cp=3", "batch.sequence=1000"}},        // padded
      {dense, {"parallel.pp=5"}},                               // uneven
      {dense, {"parallel.pp=34"}},                              // embedding and head alone on their stages
      {dense, {"parallel.pp=4", "batch.global=2"}},             // fewer microbatches than stages: idle, legal
      {dense, {"parallel.pp=4", "parallel.schedule=gpipe", "batch.global=10"}},
      {dense, {"parallel.pp=4", "parallel.vpp=2", "parallel.schedule=interleaved", "batch.global=8"}},
      {dense, {"parallel.pp=4", "parallel.vpp=2", "parallel.schedule=zbv", "batch.global=8"}},
      {dense, {"parallel.pp=4", "parallel.vpp=2", "parallel.schedule=dualpipev", "batch.global=8"}},
      {dense, {"precision.compute=fp8", "precision.fp8=block"}},
      {dense, {"recompute.kind=selective", "recompute.tensors=mlp.gate_up"}},
      {expert_model(), {"parallel.ep=8", "parallel.dp=8"}},
      {expert_model(), {"parallel.ep=8", "parallel.dp=4", "parallel.tp=2", "parallel.sp=true"}},
      {expert_model(), {"parallel.ep=4", "parallel.etp=2", "parallel.dp=8"}},
      {gpt2_model(), {"parallel.tp=12", "batch.sequence=1024"}},
      {with_mixer(MixerKind::kLatentAttention), {"parallel.cp=32", "parallel.cp_kind=ulysses"}},
  };
  for (const auto& [model, settings] : cases)
    EXPECT_EQ(layout(model, settings), Messages{}) << ::testing::PrintToString(settings);
}

TEST(Validate, StagesOfAPipeline) {
  const ModelSpec dense = dense_model({.layers = 10});
  EXPECT_EQ(layout(dense, {"parallel.pp=4", "parallel.stages=balanced"}), Messages{});
  EXPECT_EQ(layout(dense, {"parallel.pp=4", "parallel.stages=0,4,0,6"}), Messages{});
  EXPECT_EQ(layout(dense, {"parallel.pp=4", "parallel.stages=3,3,3"}),
            Messages{"parallel.stages: 3 numbers for pp x vpp = 4 chunks (use stages = [3, 3, 2, 2], or stages = "
                     "balanced)"});
  EXPECT_EQ(layout(dense, {"parallel.pp=2", "parallel.vpp=2", "parallel.schedule=zbv", "parallel.stages=3,3,3,3"}),
            Messages{"parallel.stages: 12 layers in all, the model has 10 (use stages = [3, 3, 2, 2], or stages = "
                     "balanced)"});
  EXPECT_EQ(layout(dense, {"parallel.stages=5,5"}),
            Messages{"parallel.stages: 2 numbers for pp x vpp = 1 chunks (use stages = [10], or stages = balanced)"});
  EXPECT_EQ(notes(dense, {"parallel.pp=3", "parallel.stages=4,2,4"}),
            Messages{"parallel.pp: 10 layers in chunks of 4, 2, 4"});
}

TEST(Validate, ReductionAndBuckets) {
  const ModelSpec dense = dense_model();
  EXPECT_EQ(layout(dense, {"parallel.dp=2", "parallel.zero=3", "parallel.reduce=step", "parallel.bucket_layers=32"}),
            Messages{});
  EXPECT_EQ(
      layout(dense, {"parallel.dp=2", "parallel.zero=2", "parallel.reduce=step"}),
      Messages{"parallel.reduce: step keeps gradients whole: ZeRO level 2 is then level 1 (use zero = 1 with reduce "
               "= microbatch, or zero = 3)"});
  EXPECT_EQ(
      layout(dense, {"parallel.dp=2", "parallel.zero=1", "parallel.reduce=step"}),
      Messages{"parallel.reduce: ZeRO level 1 always reduces once a step (use reduce = microbatch, or zero = 3)"});
  EXPECT_EQ(
      layout(dense, {"parallel.bucket_layers=33"}),
      Messages{"parallel.bucket_layers: a bucket of 33 layers is more than the model's 32 (use bucket_layers = 32)"});
}

TEST(Validate, ScheduleFiles) {
  RunConfig run = config({"parallel.pp=4", "parallel.vpp=2", "parallel.schedule=file", "parallel.schedule_file=x.csv",
                          "batch.global=12", "batch.micro=2"});
  EXPECT_EQ(messages(validate_layout(dense_model(), run)), Messages{"parallel.schedule_file: x.csv has not been read"});
  run.parallel.schedule_source = {
      .text = "any", .placement = Placement::kV, .num_stages = 4, .chunks_per_rank = 2, .num_microbatches = 6};
  EXPECT_EQ(messages(validate_layout(dense_model(), run)), Messages{});
  run.parallel.schedule_source = {
      .text = "any", .placement = Placement::kV, .num_stages = 2, .chunks_per_rank = 1, .num_microbatches = 5};
  EXPECT_EQ(messages(validate_layout(dense_model(), run)),
            (Messages{"parallel.pp: x.csv is a schedule of 2 ranks, pp is 4 (use pp = 2)",
                      "parallel.vpp: x.csv is a schedule of 1 chunks a rank, vpp is 2 (use vpp = 1)",
                      "batch.global: x.csv is a schedule of 5 microbatches, there are 6 (use global = 10)"}));
  EXPECT_EQ(layout(dense_model(), {"parallel.schedule=file", "parallel.pp=2"}),
            Messages{"parallel.schedule_file: schedule file needs the path of one (name a file "
                     "(docs/formats/schedule.md), or use schedule = 1f1b)"});
  EXPECT_EQ(
      layout(dense_model(), {"parallel.schedule=file", "parallel.schedule_file=x.csv"}),
      Messages{"parallel.schedule: a schedule from a file needs a pipeline, pp is 1 (use schedule = 1f1b, or pp = "
               "2)"});
  EXPECT_EQ(
      layout(dense_model(), {"parallel.schedule_file=x.csv", "parallel.pp=2"}),
      Messages{"parallel.schedule_file: belongs to schedule = file, the schedule is 1f1b (use schedule = file, or "
               "schedule_file = \"\")"});
}

TEST(Validate, TensorParallelDividesHeadsAndWidths) {
  expect_layout_errors({
      // Planner case P31: 20 heads over 8; 5 and 10 divide 20 heads and 10,240 columns.
      {dense_model({.hidden = 2560, .heads = 20, .kv_heads = 20, .ffn = 10240}),
       {"parallel.tp=8"},
       {"parallel.tp: 8 does not divide 20 attention heads (use tp = 5 or 10)",
        "parallel.tp: 8 and 20 KV heads: neither divides the other (use tp = 5 or 10)"}},
      {dense_model(),
       {"parallel.tp=3"},
       {"parallel.tp: 3 does not divide 32 attention heads (use tp = 2 or 4)",
        "parallel.tp: 3 and 8 KV heads: neither divides the other (use tp = 2 or 4)"}},
      {dense_model(), {"parallel.tp=64"}, {"parallel.tp: 64 does not divide 32 attention heads (use tp = 32)"}},
      // 24 heads, 6 KV heads: 4 divides the heads, yet a KV head would be on 2/3 of a rank.
      {dense_model({.hidden = 3072, .heads = 24, .kv_heads = 6, .ffn = 12288}),
       {"parallel.tp=4"},
       {"parallel.tp: 4 and 6 KV heads: neither divides the other (use tp = 3 or 6)"}},
      // 9 columns over 8 ranks: 2 each, and three ranks without any.
      {dense_model({.ffn = 9}),
       {"parallel.tp=8"},
       {"parallel.tp: 9 columns of the MLP leave some of 8 ranks none (use tp = 2)"}},
      {expert_model(),
       {"parallel.tp=2"},
       {"parallel.sp: tp = 2 with experts needs sequence parallelism: tokens reach the experts in shards (set sp = "
        "true, or tp = 1)"}},
  });
}

TEST(Validate, ContextParallelSplitsHeadsUnderUlysses) {
  expect_layout_errors({
      // 28 heads on 8 ranks: 4, the ring, or both axes.
      {dense_model({.hidden = 3584, .heads = 28, .kv_heads = 4, .ffn = 18944}),
       {"parallel.cp=8", "parallel.cp_kind=ulysses"},
       {"parallel.cp: ulysses cannot split 28 query and 4 KV heads per tp rank over 8 ranks (use cp = 4 or 28, or "
        "cp_kind = ring, or tp = 4 with cp = 2 and cp_kind = ring)"}},
      // tp 4 leaves 8 query heads and 2 KV heads to a rank.
      {dense_model(),
       {"parallel.cp=16", "parallel.cp_kind=ulysses", "parallel.tp=4"},
       {"parallel.cp: ulysses cannot split 8 query and 2 KV heads per tp rank over 16 ranks (use cp = 8, or cp_kind = "
        "ring, or tp = 8 with cp = 8 and cp_kind = ring)"}},
      {with_mixer(MixerKind::kMamba2),
       {"parallel.cp=2"},
       {"parallel.cp: splits attention over the sequence; this model has recurrent layers (use cp = 1)"}},
  });
}

TEST(Validate, PipelineFitsLayersAndSchedule) {
  const ModelSpec dense = dense_model();
  expect_layout_errors({
      {dense, {"parallel.pp=35"}, {"parallel.pp: 35 stages are more than embedding, 32 layers and head (use pp = 34)"}},
      {dense,
       {"parallel.pp=8", "parallel.vpp=5", "parallel.schedule=interleaved", "batch.global=8"},
       {"parallel.vpp: 8 x 5 chunks are more than embedding, 32 layers and head (use vpp = 4)"}},
      {dense, {"parallel.vpp=2"}, {"parallel.vpp: 2 chunks a rank need a pipeline, pp is 1 (use vpp = 1, or pp = 2)"}},
      {dense,
       {"parallel.pp=2", "parallel.vpp=2"},
       {"parallel.vpp: schedule 1f1b has one chunk a rank, vpp is 2 (use vpp = 1, or schedule = interleaved)"}},
      {dense,
       {"parallel.pp=2", "parallel.schedule=interleaved", "batch.global=2"},
       {"parallel.vpp: schedule interleaved needs several chunks a rank, vpp is 1 (use vpp = 2, or schedule = 1f1b)"}},
      {dense,
       {"parallel.pp=2", "parallel.schedule=zbv"},
       {"parallel.vpp: schedule zbv has two chunks a rank, vpp is 1 (use vpp = 2)"}},
      {dense,
       {"parallel.pp=2", "parallel.vpp=3", "parallel.schedule=v-min"},
       {"parallel.vpp: schedule v-min has two chunks a rank, vpp is 3 (use vpp = 2)"}},
      // Planner case P31: 10 microbatches in rounds of 4; 8 and 12 are multiples of 4.
      {dense,
       {"parallel.pp=4", "parallel.vpp=2", "parallel.schedule=interleaved", "batch.global=10"},
       {"batch.global: schedule interleaved takes the microbatches in rounds of pp: 10 is not a multiple of 4 (use "
        "global = 8 or 12, or schedule = 1f1b with vpp = 1)"}},
      {dense,
       {"parallel.pp=4", "parallel.vpp=2", "parallel.schedule=interleaved", "parallel.dp=2", "batch.micro=3"},
       {"batch.global: schedule interleaved takes the microbatches in rounds of pp: 1 is not a multiple of 4 (use "
        "global = 24, or schedule = 1f1b with vpp = 1)"}},
      // 2 x 4 microbatches of 2 sequences on each of 3 replicas: 48.
      {dense,
       {"parallel.pp=4", "parallel.vpp=2", "parallel.schedule=dualpipev", "parallel.dp=3", "batch.micro=2",
        "batch.global=42"},
       {"batch.global: schedule dualpipev needs at least 2 pp = 8 microbatches, there are 7 (use global = 48 or "
        "more)"}},
  });
}

TEST(Validate, ExpertsFitTheGrid) {
  expect_layout_errors({
      {dense_model(), {"parallel.ep=2", "parallel.dp=2"}, {"parallel.ep: 2 needs a model with experts (use ep = 1)"}},
      {dense_model(),
       {"parallel.etp=2", "parallel.dp=2"},
       {"parallel.etp: 2 needs a model with experts (use etp = 1)"}},
      {expert_model(),
       {"parallel.ep=3", "parallel.dp=3"},
       {"parallel.ep: 3 does not divide 8 experts (use ep = 2 or 4)"}},
      {expert_model(),
       {"parallel.ep=16", "parallel.dp=16"},
       {"parallel.ep: 16 does not divide 8 experts (use ep = 8)"}},
      {expert_model(),
       {"parallel.ep=4", "parallel.dp=2"},
       {"parallel.ep: ep x etp = 4 does not divide the 2 ranks of a stage (tp x cp x dp) (use ep = 2)"}},
      // 14,336 = 2^11 x 7: 3 does not divide it.
      {expert_model(),
       {"parallel.etp=3", "parallel.dp=3"},
       {"parallel.etp: 3 does not divide the 14336 columns of an expert (use etp = 2 or 4)"}},
  });
}

TEST(Validate, ShardingAndBatchDivide) {
  const ModelSpec dense = dense_model();
  expect_layout_errors({
      {dense,
       {"parallel.dp=4", "parallel.shard_size=3"},
       {"parallel.shard_size: 3 does not divide the 4 ranks of dp x cp (use shard_size = 2 or 4)"}},
      {dense,
       {"parallel.dp=4", "parallel.shard_size=2", "parallel.zero=0"},
       {"parallel.shard_size: 2 ranks cannot share a shard at ZeRO level 0 (use zero = 1, or shard_size = 0)"}},
      {dense,
       {"parallel.dp=1048576", "parallel.cp=1048576"},
       {"parallel: dp x tp x cp x pp is more than 1048576 ranks (use smaller degrees)"}},
      {dense,
       {"batch.global=128", "parallel.dp=6"},
       {"batch.global: 128 sequences cannot be split into microbatches of 1 over 6 replicas (use 126 or 132)"}},
      {dense,
       {"batch.sequence=8193"},
       {"batch.sequence: 8193 tokens are more than the 8192 positions of the model (use sequence = 8192)"}},
      {gpt2_model(),
       {"batch.sequence=2048"},
       {"batch.sequence: 2048 tokens are more than the 1024 positions of the model (use sequence = 1024)"}},
      {dense,
       {"run.steps=10", "run.tokens=1M"},
       {"run.steps: 10 steps contradict run.tokens = 1000000, which are 977 steps (give only one of them)"}},
  });
}

TEST(Validate, SettingsGoTogether) {
  const ModelSpec dense = dense_model();
  expect_layout_errors({
      {dense,
       {"precision.compute=fp32", "precision.grads=bf16"},
       {"precision.grads: bf16 does not go with compute = fp32 (use grads = fp32)"}},
      {dense,
       {"precision.compute=bf16", "precision.params=fp16"},
       {"precision.params: fp16 does not go with compute = bf16 (use params = fp32 or bf16)"}},
      {dense,
       {"precision.compute=fp8", "precision.reduce=fp16"},
       {"precision.reduce: fp16 does not go with compute = fp8 (use reduce = fp32 or bf16)"}},
      // Engine case E60: a bf16 sum of 256 small gradients stalls.
      {dense,
       {"precision.grads=bf16", "batch.global=256", "batch.micro=2"},
       {"precision.grads: bf16 loses small contributions when 128 microbatches accumulate (use grads = fp32, or micro "
        "= 256)"}},
      {dense_model({.hidden = 40, .heads = 4, .kv_heads = 2, .ffn = 96}),
       {"precision.compute=fp8"},
       {"precision.compute: fp8 products need sizes that 16 divides, the hidden size is 40 (use compute = bf16)"}},
      // 14,336 / 32 = 448 = 3.5 x 128.
      {dense,
       {"precision.compute=fp8", "precision.fp8=block", "parallel.tp=32"},
       {"precision.compute: fp8 products need sizes that 128 divides, the MLP's width per tp rank is 448 (use compute "
        "= bf16)"}},
      {dense,
       {"recompute.kind=full", "recompute.every=33"},
       {"recompute.every: a segment of 33 layers is more than the model's 32 (use every = 32)"}},
      {dense,
       {"recompute.kind=selective"},
       {"recompute.tensors: selective recompute needs the tensors to drop (name some, for example [\"mlp.gate_up\"], "
        "or use kind = full)"}},
      {dense,
       {"recompute.kind=selective", "recompute.tensors=mlp.gateup"},
       {"recompute.tensors: no layer of this model has a saved tensor mlp.gateup (did you mean mlp.gate_up? it has "
        "attention.qkv, attention.out, mlp.gate_up)"}},
      {dense,
       {"recompute.kind=selective", "recompute.tensors=mlp.up"},
       {"recompute.tensors: no layer of this model has a saved tensor mlp.up (it has attention.qkv, attention.out, "
        "mlp.gate_up)"}},
      {dense,
       {"recompute.kind=full", "recompute.tensors=mlp.gate_up"},
       {"recompute.tensors: tensors are dropped by kind = selective, not by full (use kind = selective, or tensors = "
        "[])"}},
      {dense,
       {"optimizer.momentum=0.9"},
       {"optimizer.momentum: is SGD's; AdamW has betas (use momentum = 0, or kind = sgd)"}},
      {dense,
       {"optimizer.kind=sgd", "precision.optimizer_state=8bit"},
       {"precision.optimizer_state: SGD keeps its momentum in fp32, not 8bit (use optimizer_state = fp32, or kind = "
        "adamw)"}},
      {dense,
       {"precision.compute=fp32", "precision.master=none"},
       {"precision.master: weights in fp32 have no master copy to leave out (use master = fp32, or compute = bf16)"}},
      {dense,
       {"lr.decay_steps=10"},
       {"lr.decay_steps: belongs to wsd, the schedule is cosine (use decay_steps = 0, or schedule = wsd)"}},
      {dense,
       {"comm.backend=mpi", "comm.rendezvous=true"},
       {"comm.rendezvous: is a mode of local, the backend is mpi (use rendezvous = false, or backend = local)"}},
      {dense,
       {"comm.backend=nccl", "comm.simulate=two-nodes"},
       {"comm.simulate: is a mode of local, the backend is nccl (use simulate = \"\", or backend = local)"}},
  });
}

TEST(Validate, AllProblemsAtOnce) {
  const Messages found = layout(dense_model(), {"parallel.tp=64", "batch.sequence=9000", "optimizer.momentum=0.5"});
  EXPECT_EQ(found.size(), 3u) << ::testing::PrintToString(found);
}

TEST(Validate, NotesSayWhatIsPaddedReplicatedOrUneven) {
  // Planner case P31: (V 50257, tp 2), (2 KV heads, tp 8), (30 layers, pp 4).
  EXPECT_EQ(notes(dense_model({.vocab = 50257}), {"parallel.tp=2"}),
            (Messages{"parallel.tp: the vocabulary of 50257 is padded to 50258 rows"}));
  EXPECT_EQ(notes(dense_model({.kv_heads = 2}), {"parallel.tp=8"}),
            (Messages{"parallel.tp: 2 KV heads: each is on 4 ranks"}));
  EXPECT_EQ(notes(dense_model({.ffn = 14337}), {"parallel.tp=2"}),
            (Messages{"parallel.tp: the MLP's 14337 columns are padded to 14338"}));
  EXPECT_EQ(notes(dense_model({.layers = 30}), {"parallel.pp=4"}),
            (Messages{"parallel.pp: 30 layers in chunks of 8, 8, 7, 7"}));
  EXPECT_EQ(notes(dense_model(), {"parallel.cp=2", "batch.sequence=1022"}),
            (Messages{"batch.sequence: 1022 tokens are padded to 1024 with ignored ones"}));
  // Planner case P32.
  EXPECT_EQ(
      notes(dense_model(), {"parallel.pp=4", "parallel.zero=3", "batch.global=32"}),
      (Messages{
          "parallel.zero: level 3 repeats its collectives for each of 32 microbatches, level 1 has them once a step"}));
  EXPECT_EQ(notes(dense_model(), {"parallel.tp=8", "parallel.pp=4"}), Messages{});
}

TEST(Validate, TrainingNeedsModelDataAndLength) {
  const auto run = [](Settings settings) {
    for (const char* setting : {"run.steps=100", "model.name=gpt2", "data.train=text.txt"})
      settings.insert(settings.begin(), setting);
    return messages(validate_run(config(settings)));
  };
  EXPECT_EQ(run({}), Messages{});
  EXPECT_EQ(run({"run.steps=0"}),
            (Messages{"run.steps: the run has no length (give steps, or tokens, for example tokens = \"2B\")"}));
  EXPECT_EQ(run({"data.train="}), (Messages{"data.train: no training data is given (set it to a file or a folder)"}));
  EXPECT_EQ(run({"model.name="}),
            (Messages{"model: no model is given (set model.name, or model.config to the path of a config.json)"}));
  EXPECT_EQ(run({"model.config=config.json"}),
            (Messages{"model: name and config both name a model (give only one of them)"}));
  EXPECT_EQ(run({"run.name=../x"}), (Messages{"run.name: \"../x\" cannot be the name of a folder of runs (use letters, "
                                              "digits, '-', '_' and '.', for example x)"}));
  EXPECT_EQ(run({"run.name="}), (Messages{"run.name: \"\" cannot be the name of a folder of runs (use letters, digits, "
                                          "'-', '_' and '.', for example demo)"}));
  EXPECT_EQ(run({"run.validate_every=5"}),
            (Messages{"run.validate_every: validation needs data (set data.validation, or validate_every = 0)"}));
  EXPECT_EQ(run({"lr.warmup_steps=101"}), (Messages{"lr.warmup_steps: 101 steps of warm-up are more than the 100 steps "
                                                    "of the run (use warmup_steps = 100 or fewer)"}));
  EXPECT_EQ(run({"lr.schedule=wsd", "lr.warmup_steps=60", "lr.decay_steps=50"}),
            (Messages{"lr.decay_steps: 60 steps of warm-up and 50 of decay are more than the 100 steps of the run (use "
                      "decay_steps = 40 or fewer)"}));
  EXPECT_EQ(
      run({"run.steps=100", "run.tokens=1M"}),
      (Messages{"run.steps: 100 steps contradict run.tokens = 1000000, which are 977 steps (give only one of them)"}));
}

TEST(Validate, ErrorsPrintOnePerLineWithTheirHints) {
  EXPECT_EQ(to_string(std::vector<Error>{}), "");
  EXPECT_EQ(to_string({Error{"parallel.tp", "8 does not divide 20 heads", "use 5 or 10"}}),
            "1 problem:\n  parallel.tp: 8 does not divide 20 heads\n    -> use 5 or 10\n");
  EXPECT_EQ(to_string({Error{"a.b", "first", ""}, Error{"", "second", "do this"}}),
            "2 problems:\n  a.b: first\n  second\n    -> do this\n");
}

}  // namespace
}  // namespace fivefold::test
