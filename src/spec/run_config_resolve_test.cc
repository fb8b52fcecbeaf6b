#include "spec/run_config_resolve.h"

#include <gtest/gtest.h>

#include "spec/run_config_io.h"
#include "spec/validate_test_models.h"

namespace fivefold {
namespace {

using test::dense_model;

RunConfig config(std::vector<std::string> settings) {
  const LoadedConfig loaded = load_config({.set = std::move(settings)});
  for (const Error& error : loaded.errors) ADD_FAILURE() << error.message();
  return loaded.config;
}
ResolvedConfig resolved(std::vector<std::string> settings, const ModelSpec& model = dense_model()) {
  return resolve(config(std::move(settings)), model).value();
}

TEST(Resolve, MicrobatchesAreWhatEachReplicaRuns) {
  const ResolvedConfig r = resolved({"batch.global=64", "batch.micro=2", "parallel.dp=4", "batch.sequence=512"});
  EXPECT_EQ(r.num_microbatches, 8);      // 64 / (2 x 4)
  EXPECT_EQ(r.tokens_per_step, 32'768);  // 64 x 512
}

TEST(Resolve, GlobalBatchDefaultsToOneMicrobatchPerReplica) {
  const ResolvedConfig r = resolved({"batch.micro=3", "parallel.dp=4"});
  EXPECT_EQ(r.config.batch.global, 12);
  EXPECT_EQ(r.num_microbatches, 1);
}

// Planner case P31: 128 sequences over 6 replicas; 126 = 21 x 6, 132 = 22 x 6.
TEST(Resolve, BatchThatDoesNotDivideNamesTheNearest) {
  const auto r = num_microbatches(config({"batch.global=128", "parallel.dp=6"}));
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().message(),
            "batch.global: 128 sequences cannot be split into microbatches of 1 over 6 replicas (use 126 or 132)");
  EXPECT_EQ(num_microbatches(config({"batch.global=3", "batch.micro=2", "parallel.dp=2"})).error().hint, "use 4");
}

TEST(Resolve, StepsFollowFromTokens) {
  // 8 x 1,024 = 8,192 tokens a step; 1,000,000 / 8,192 = 122.07, so 123 steps see them all.
  EXPECT_EQ(resolved({"run.tokens=1M", "batch.global=8"}).config.run.steps, 123);
  EXPECT_EQ(resolved({"run.steps=7"}).config.run.steps, 7);
  EXPECT_EQ(resolved({}).config.run.steps, 0);
  EXPECT_EQ(resolved({"run.steps=123", "run.tokens=1M", "batch.global=8"}).config.run.steps, 123) << "consistent";
  EXPECT_EQ(total_steps(config({"run.steps=122", "run.tokens=1M", "batch.global=8"})).error().message(),
            "run.steps: 122 steps contradict run.tokens = 1000000, which are 123 steps (give only one of them)");
}

// 2^20 x 2^20 sequences of 2^30 tokens are 2^70; at most 2^20 of them make 2^50.
TEST(Resolve, TokensOfAStepStayInInt64) {
  const auto tokens = [](std::vector<std::string> settings) { return tokens_per_step(config(std::move(settings))); };
  EXPECT_EQ(tokens({"batch.global=1048576", "batch.sequence=1073741824"}).value(), int64_t{1} << 50);
  EXPECT_EQ(tokens({"batch.global=1048577", "batch.sequence=1073741824"}).error().where, "batch.global");
  const std::vector<std::string> most = {"batch.micro=1048576", "parallel.dp=1048576", "batch.sequence=1073741824",
                                         "run.tokens=1"};
  EXPECT_EQ(tokens(most).error().message(),
            "batch.micro: 1099511627776 sequences of 1073741824 tokens are more than 2^50 tokens a step (use at most "
            "1048576 sequences, or shorter ones)");
  EXPECT_EQ(total_steps(config(most)).error().where, "batch.micro");
  EXPECT_EQ(resolve(config(most), dense_model()).ok(), false);
}

TEST(Resolve, WsdDecaysOverTheLastTenth) {
  EXPECT_EQ(resolved({"lr.schedule=wsd", "run.steps=200"}).config.lr.decay_steps, 20);
  EXPECT_EQ(resolved({"lr.schedule=wsd", "run.steps=5"}).config.lr.decay_steps, 1);
  EXPECT_EQ(resolved({"lr.schedule=wsd", "run.steps=200", "lr.decay_steps=50"}).config.lr.decay_steps, 50);
  EXPECT_EQ(resolved({"lr.schedule=cosine", "run.steps=200"}).config.lr.decay_steps, 0);
}

struct PrecisionCase {
  std::vector<std::string> settings;
  DType compute, params, grads, reduce;
  bool master;
};

constexpr DType kF32 = DType::kFloat32, kB16 = DType::kBFloat16, kF16 = DType::kFloat16;

TEST(Resolve, PrecisionFollowsComputeTypeMicrobatchesAndZeroLevel) {
  const PrecisionCase cases[] = {
      {{"precision.compute=fp32", "parallel.zero=0"}, kF32, kF32, kF32, kF32, false},
      {{"precision.compute=fp32", "parallel.zero=3", "batch.global=4"}, kF32, kF32, kF32, kF32, false},
      {{"precision.compute=bf16", "parallel.zero=1"}, kB16, kB16, kB16, kB16, true},
      // Accumulated gradients are fp32, and at level 1 the accumulated buffer is what is reduced.
      {{"precision.compute=bf16", "parallel.zero=1", "batch.global=2"}, kB16, kB16, kF32, kF32, true},
      // At level 2 each microbatch's bf16 gradient is reduced into the fp32 shard.
      {{"precision.compute=bf16", "parallel.zero=2", "batch.global=2"}, kB16, kB16, kF32, kB16, true},
      {{"precision.compute=bf16", "parallel.zero=3"}, kB16, kB16, kB16, kB16, true},
      {{"precision.compute=bf16", "precision.grads=fp32", "parallel.zero=0"}, kB16, kB16, kF32, kF32, true},
      {{"precision.compute=bf16", "precision.params=fp32", "parallel.zero=0"}, kB16, kF32, kF32, kF32, false},
      {{"precision.compute=bf16", "precision.reduce=fp32", "parallel.zero=3"}, kB16, kB16, kB16, kF32, true},
      {{"precision.compute=fp16", "parallel.zero=1"}, kF16, kF16, kF16, kF16, true},
      {{"precision.compute=fp8", "parallel.zero=1"}, kB16, kB16, kB16, kB16, true},
  };
  for (const PrecisionCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c.settings));
    const ResolvedConfig r = resolved(c.settings);
    EXPECT_EQ(r.compute, c.compute);
    EXPECT_EQ(r.params, c.params);
    EXPECT_EQ(r.grads, c.grads);
    EXPECT_EQ(r.reduce, c.reduce);
    EXPECT_EQ(r.master, c.master);
  }
}

TEST(Resolve, ShardsOverAllReplicasUnlessToldOtherwise) {
  EXPECT_EQ(resolved({"parallel.dp=4", "parallel.cp=2"}).degrees.shard_size, 8);
  EXPECT_EQ(resolved({"parallel.dp=4", "parallel.shard_size=2"}).degrees.shard_size, 2);
}

// A run's config.toml holds what was resolved, and the run goes on from it.
TEST(Resolve, AcceptsWhatItReturned) {
  for (const char* zero : {"parallel.zero=0", "parallel.zero=1", "parallel.zero=3"}) {
    const ResolvedConfig once = resolved({"parallel.dp=4", zero});
    const Result<ResolvedConfig> twice = resolve(once.config, dense_model());
    ASSERT_TRUE(twice.ok()) << zero << ": " << twice.error().message();
    EXPECT_EQ(twice->degrees.shard_size, once.degrees.shard_size);
  }
  EXPECT_EQ(resolved({"parallel.dp=4", "parallel.zero=0"}).degrees.shard_size, 1);
}

// Planner case P31: 50,257 over 2 needs one row more; 24 x 5,387 = 129,288 is the first multiple above 129,280.
TEST(Resolve, VocabularyIsPaddedToEqualParts) {
  EXPECT_EQ(resolved({"parallel.tp=2"}, dense_model({.vocab = 50257})).padded_vocab, 50258);
  EXPECT_EQ(resolved({"parallel.tp=24"}, dense_model({.heads = 24, .kv_heads = 24, .ffn = 24 * 512, .vocab = 129280}))
                .padded_vocab,
            129'288);
  EXPECT_EQ(resolved({}, dense_model({.vocab = 131})).padded_vocab, 131);
}

// lcm(2c, tc): cp 2 cuts into 4 chunks; with sp the ranks of tp cut each cp part again.
TEST(Resolve, SequenceIsPaddedToEqualParts) {
  EXPECT_EQ(resolved({"batch.sequence=21"}).padded_sequence, 21);
  EXPECT_EQ(resolved({"batch.sequence=21", "parallel.cp=2"}).padded_sequence, 24);
  EXPECT_EQ(resolved({"batch.sequence=21", "parallel.tp=8", "parallel.sp=true"}).padded_sequence, 24);
  EXPECT_EQ(resolved({"batch.sequence=21", "parallel.cp=3", "parallel.tp=4", "parallel.sp=true"}).padded_sequence, 24);
  EXPECT_EQ(resolved({"batch.sequence=21", "parallel.tp=4"}).padded_sequence, 21);
}

// Planner case P31 and engine case E34: no layer is lost when stages do not divide the layers.
TEST(Resolve, UnevenLayersGoToTheFirstChunks) {
  const auto chunks = [](int64_t layers, const std::string& pp) {
    return resolved({"parallel.pp=" + pp}, dense_model({.layers = layers})).layers_per_chunk;
  };
  EXPECT_EQ(chunks(30, "4"), (std::vector<int64_t>{8, 8, 7, 7}));
  EXPECT_EQ(chunks(61, "8"), (std::vector<int64_t>{8, 8, 8, 8, 8, 7, 7, 7}));
  EXPECT_EQ(chunks(5, "2"), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(chunks(2, "4"), (std::vector<int64_t>{1, 1, 0, 0}));
}

TEST(Resolve, ResolvingTwiceChangesNothing) {
  const ResolvedConfig once = resolved(
      {"batch.global=8", "batch.micro=2", "parallel.dp=2", "parallel.zero=3", "run.tokens=1M", "lr.schedule=wsd"});
  const ResolvedConfig twice = resolve(once.config, dense_model()).value();
  EXPECT_EQ(once.config, twice.config);
}

TEST(Resolve, RefusesWhatValidationRefuses) {
  const auto r = resolve(config({"parallel.tp=3"}), dense_model());
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().where, "parallel.tp");
}

}  // namespace
}  // namespace fivefold
