// Reports of users of other tools, as tests: which layouts are legal, and which of them is best. The number in a test's
// comment is the report's in docs/planner_cases.md.
#include "base/integer.h"
#include "planner/cases_testing.h"
#include "planner/profiles/framework_search.h"
#include "schedule/generate.h"
#include "schedule/replay.h"
#include "spec/pipeline_stages.h"
#include "spec/validate.h"

namespace fivefold::test {
namespace {

using Degrees = std::vector<int64_t>;

std::string all_of(const std::vector<Error>& errors) { return to_string(errors); }

// P29, SkyRL#1768, fms-fsdp#63: leave head-room; of equally fast plans the smaller microbatch.
TEST(Cases, LeavesHeadRoom) {
  for (const char* model : {"llama-3.1-8b", "qwen2.5-3b", "smollm2-1.7b"}) {
    const auto result = search_layouts(request_for(model, "dgx-h100", 8, 4096));
    ASSERT_TRUE(result.ok());
    ASSERT_FALSE(result->plans.empty());
    double fastest = 0;
    for (const Candidate& plan : result->plans) {
      EXPECT_LE(static_cast<double>(plan.ledger.peak_total), 0.92 * 84'975'927'951.0) << model;
      fastest = std::max(fastest, plan.tokens_per_s);
    }
    const Candidate& best = result->plans[0];
    for (const Candidate& plan : result->plans) {
      if (plan.tokens_per_s >= 0.97 * fastest && plan.config.config.parallel == best.config.config.parallel &&
          plan.config.config.recompute == best.config.config.recompute) {
        EXPECT_GE(plan.config.config.batch.micro, best.config.config.batch.micro) << model;
      }
    }
  }
}

// P30, verl#1226, LongPO#5, DeepSpeed#6392: c divides the query heads, and c and the KV heads divide one another.
TEST(Cases, DegreesOfUlysses) {
  EXPECT_EQ(ulysses_degrees(40, 8), (Degrees{1, 2, 4, 8, 40}));
  EXPECT_EQ(ulysses_degrees(28, 4), (Degrees{1, 2, 4, 28}));
  EXPECT_EQ(ulysses_degrees(64, 8), (Degrees{1, 2, 4, 8, 16, 32, 64}));
}

// P30, LongPO#5: 28 heads on 8 ranks: refused, with what works: 4, a ring, or both axes at once.
TEST(Cases, UlyssesRefusesWithOffers) {
  RunConfig config;
  config.parallel.cp = 8;
  config.parallel.cp_kind = CpKind::kUlysses;
  config.batch.sequence = 4096;
  const ModelSpec model = named_model("qwen2-7b");
  const std::vector<Error> errors = validate_layout(model, config);
  ASSERT_EQ(errors.size(), 1u) << all_of(errors);
  EXPECT_EQ(errors[0].where, "parallel.cp");
  EXPECT_NE(errors[0].hint.find("cp = 4"), std::string::npos) << errors[0].hint;
  EXPECT_NE(errors[0].hint.find("cp_kind = ring"), std::string::npos) << errors[0].hint;
  EXPECT_NE(errors[0].hint.find("tp = 4 with cp = 2 and cp_kind = ring"), std::string::npos) << errors[0].hint;
  config.parallel.cp = 4;
  EXPECT_TRUE(validate_layout(model, config).empty());
  config.parallel.tp = 4;
  config.parallel.cp = 2;
  config.parallel.cp_kind = CpKind::kRing;
  EXPECT_TRUE(validate_layout(model, config).empty());
}

// P31, Megatron-LM#1304: two of 30 layers vanished on 4 stages; here the first two stages have one more.
TEST(Cases, LayersThatStagesDoNotDivide) {
  RunConfig config;
  config.parallel.pp = 4;
  config.batch.global = 4;
  const ModelSpec model = llama({.layers = 30});
  EXPECT_EQ(resolved_run(model, config).layers_per_chunk, (Degrees{8, 8, 7, 7}));
  EXPECT_NE(all_of(layout_notes(model, config)).find("8, 8, 7, 7"), std::string::npos);
}

// P31, Megatron-LM#1754 (50,257 on 2), sglang#31799 (129,280 on 24): padded, and said so.
TEST(Cases, VocabularyThatRanksDoNotDivide) {
  struct Vocabulary {
    ModelSpec model;
    int tp;
    int64_t least;
  };
  for (const auto& [model, tp, least] :
       {Vocabulary{gpt({12, 768, 12, 50257}), 2, 50258},
        Vocabulary{llama({4, 6144, 48, 24, 24576, 129280}), 24, 24 * div_ceil(129280, 24)}}) {
    RunConfig config;
    config.parallel.tp = tp;
    EXPECT_TRUE(validate_layout(model, config).empty()) << all_of(validate_layout(model, config));
    const int64_t padded = resolved_run(model, config).padded_vocab;
    EXPECT_GE(padded, least);
    EXPECT_EQ(padded % tp, 0);
    EXPECT_NE(all_of(layout_notes(model, config)).find("padded to " + std::to_string(padded)), std::string::npos);
  }
}

// P31: 20 heads on 8 ranks (DeepSpeed#6392's shape) are refused, with the nearest that divide.
TEST(Cases, HeadsThatRanksDoNotDivide) {
  RunConfig config;
  config.parallel.tp = 8;
  const std::vector<Error> errors = validate_layout(llama({4, 2560, 20, 20, 10240, 32000}), config);
  ASSERT_FALSE(errors.empty());
  EXPECT_EQ(errors[0].problem, "8 does not divide 20 attention heads");
  EXPECT_EQ(errors[0].hint, "use tp = 5 or 10");
}

// P31, modelexpress#650: 2 KV heads on 8 ranks: each on 4, and a rank has as many bytes as with 8 of them.
TEST(Cases, FewKvHeadsAreReplicatedAndCounted) {
  RunConfig config;
  config.parallel.tp = 8;
  const ModelSpec few = llama({4, 2048, 16, 2, 8192, 32000}), enough = llama({4, 2048, 16, 8, 8192, 32000});
  EXPECT_NE(all_of(layout_notes(few, config)).find("2 KV heads: each is on 4 ranks"), std::string::npos);
  const auto bytes = [&](const ModelSpec& model) {
    return predict_memory(model, build_inventory(model), resolved_run(model, config)).persistent[Account::kParams];
  };
  EXPECT_EQ(bytes(few), bytes(enough));
}

// P31, torchtitan#775, pytorch#129597: 10 microbatches on 4 stages: the interleaved schedule refuses, 1F1B takes them.
TEST(Cases, MicrobatchesThatStagesDoNotDivide) {
  RunConfig config;
  config.parallel.pp = 4;
  config.parallel.vpp = 2;
  config.parallel.schedule = ScheduleKind::kInterleaved;
  config.batch.global = 10;
  const std::vector<Error> errors = validate_layout(llama({}), config);
  ASSERT_EQ(errors.size(), 1u) << all_of(errors);
  EXPECT_NE(errors[0].hint.find("global = 8 or 12"), std::string::npos) << errors[0].hint;
  config.parallel.vpp = 1;
  config.parallel.schedule = ScheduleKind::k1F1B;
  EXPECT_TRUE(validate_layout(llama({}), config).empty());
  config.batch.global = 2;  // fewer than stages: slow, and no deadlock
  EXPECT_TRUE(validate_layout(llama({}), config).empty());
}

// P31: 128 sequences over 6 replicas: 126 or 132.
TEST(Cases, BatchThatReplicasDoNotDivide) {
  SearchRequest request = request_for("llama-3.2-1b", "dgx-h100", 6, 2048, 128);
  request.fixed = {.tp = true, .cp = true, .pp = true};
  const auto replicas = search_layouts(request);
  ASSERT_FALSE(replicas.ok());
  EXPECT_EQ(replicas.error().where, "batch.global");
  EXPECT_EQ(replicas.error().hint, "use 126 or 132");
  // Two replicas of three ranks.
  request.fixed = {};
  const auto split = search_layouts(request);
  ASSERT_TRUE(split.ok());
  ASSERT_FALSE(split->plans.empty());
  EXPECT_LE(split->plans[0].config.config.parallel.dp, 2);
}

// P31: bubble of 8 stages: 7 / (M + 7).
TEST(Cases, BubbleOfEightStages) {
  for (const auto& [m, share] : {std::pair{8, 0.467}, {16, 0.304}, {32, 0.179}, {64, 0.099}}) {
    const Replay run = replay(generate(ScheduleKind::k1F1B, 8, 1, m).value(), StageTimes{}, 0);
    for (int rank = 0; rank < 8; ++rank) EXPECT_NEAR(run.bubble_s(rank) / run.makespan_s, share, 0.0006) << m;
  }
}

// P23, DeepSpeed#4477, zero-bubble#8: 1F1B keeps min(M, P - i) microbatches on stage i.
TEST(Cases, MicrobatchesInFlight) {
  const auto in_flight = [](int m) {
    Degrees peaks;
    const auto checked = check_schedule(generate(ScheduleKind::k1F1B, 8, 1, m).value());
    for (const LiveChunks& live : *checked) peaks.push_back(live.activations);
    return peaks;
  };
  EXPECT_EQ(in_flight(32), (Degrees{8, 7, 6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(in_flight(2), (Degrees{2, 2, 2, 2, 2, 2, 2, 1}));
}

// P44, Megatron-Bridge#5391: 70B on TP 4, PP 8, VP 5: a lighter last chunk is faster at the same memory. The output
// matrix is 2 h V / (2 x 0.856e9) = 1.23 layers.
TEST(Cases, TheLastStageHasFewerLayers) {
  const ModelSpec model = named_model("llama-3-70b");
  ParallelConfig parallel;
  parallel.pp = 8;
  const Degrees plain = balanced_layers(model, parallel, 8192);
  EXPECT_LE(plain.back(), 9);
  EXPECT_LE(*std::ranges::max_element(plain), 11);
  parallel.vpp = 5;
  parallel.schedule = ScheduleKind::kInterleaved;
  const Degrees chunks = balanced_layers(model, parallel, 8192);
  std::vector<int64_t> of_rank(8, 0);
  for (size_t i = 0; i < chunks.size(); ++i) of_rank[i % 8] += chunks[i];
  EXPECT_LE(of_rank.back(), 9);
  EXPECT_LE(chunks.back(), 1);
}

// P44: as a plan: the balanced cut is faster than the even one and needs no more.
TEST(Cases, BalancedStagesAreFasterAtTheSameMemory) {
  const ModelSpec model = named_model("llama-3-70b");
  const Inventory inventory = build_inventory(model);
  const HardwareSpec hardware = named_hardware("dgx-h100");
  RunConfig config;
  config.parallel.dp = 2;
  config.parallel.tp = 4;
  config.parallel.sp = true;
  config.parallel.pp = 8;
  config.parallel.vpp = 5;
  config.parallel.schedule = ScheduleKind::kInterleaved;
  config.batch = {.global = 64, .micro = 1, .sequence = 8192};
  const ResolvedConfig even = resolved_run(model, config);
  config.parallel.stages.cut = StageCut::kBalanced;
  const ResolvedConfig balanced = resolved_run(model, config);
  EXPECT_LT(predict_cost(model, inventory, balanced, hardware).seconds,
            predict_cost(model, inventory, even, hardware).seconds);
  const double before = static_cast<double>(fullest_rank(model, inventory, even, hardware).ledger.peak_total);
  EXPECT_LT(static_cast<double>(fullest_rank(model, inventory, balanced, hardware).ledger.peak_total), 1.03 * before);
}

// P39, oumi#213: 2B on 4 nodes of 8 A100-40: hybrid sharding 74.4 samples/s, full sharding 55.3: 1.35 times; 70B cannot
// be sharded within a node of 8 x 40 GB: 141 GB a GPU.
TEST(Cases, HybridShardingWhereTheStatesFitANode) {
  SearchRequest request = request_for("smollm2-1.7b", "aws-p4d", 32, 2048, 64);
  request.max_plans = 1;
  const auto result = search_layouts(request);
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->plans.empty());
  EXPECT_LE(result->plans[0].config.config.parallel.shard_size, 8);
  const Inventory inventory = build_inventory(request.model);
  const auto seconds = [&](int shard_size) {
    return predict_cost(
               request.model, inventory,
               resolved(request.model, {.dp = 32, .zero = 3, .shard_size = shard_size, .micro = 2, .sequence = 2048}),
               request.hardware)
        .seconds;
  };
  EXPECT_GE(seconds(32) / seconds(8), 1.15);
  EXPECT_LE(seconds(32) / seconds(8), 1.6);
  const ModelSpec large = named_model("llama-3-70b");
  EXPECT_NEAR(state_bytes(build_inventory(large), resolved(large, {.dp = 32, .zero = 3, .shard_size = 8})) / 1e9, 141,
              1);
}

// P39: PyTorch's FSDP there: the search shards within a node.
TEST(Cases, HybridShardingIsFirstOfFsdp) {
  FrameworkRequest request;
  request.base = run_of(Framework::kFsdp2, named_model("smollm2-1.7b"), "a100-sxm-40gb");
  request.base.weight_dtype.set(DType::kFloat32);
  request.base.sequence = 2048;
  request.hardware = named_hardware("aws-p4d");
  request.gpus = 32;
  request.global_batch = 64;
  request.fixed = {.tp = true, .cp = true, .pp = true};
  const auto result = search_framework(request);
  ASSERT_TRUE(result.ok());
  ASSERT_FALSE(result->plans.empty());
  EXPECT_EQ(result->plans[0].layout.shard_size, 8);
}

// P36, Megatron-LM#258: a 10B model on one node of 8 A100: PP 8 was 30 % faster than TP 8 with many microbatches; with
// 4 of them 7 / 11 of the pipeline is bubble.
TEST(Cases, PipelinesBeatTensorSplitsWithManyMicrobatches) {
  const ModelSpec model = gpt({48, 4096, 32, 50304});
  const Inventory inventory = build_inventory(model);
  const HardwareSpec hardware = named_hardware("dgx-a100-80gb");
  const auto seconds = [&](int tp, int pp, int64_t accumulation) {
    RunConfig config;
    config.parallel.tp = tp;
    config.parallel.sp = tp > 1;
    config.parallel.pp = pp;
    config.parallel.zero = 0;
    config.batch = {.global = accumulation, .micro = 1, .sequence = 2048};
    return predict_cost(model, inventory, resolved_run(model, config), hardware).seconds;
  };
  EXPECT_LE(seconds(1, 8, 64), seconds(8, 1, 64));
  EXPECT_GT(seconds(1, 8, 4), seconds(8, 1, 4));
}

}  // namespace
}  // namespace fivefold::test
