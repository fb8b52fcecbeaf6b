// Every way in which degrees, kinds and schedules do not go together, each with its reason and the nearest setting that
// does. That hints lead to a legal layout from anywhere: tests/distributed/valid_layouts_test.cc.
#include <gtest/gtest.h>

#include "spec/run_config_io.h"
#include "spec/validate.h"
#include "spec/validate_test_models.h"

namespace fivefold {
namespace {

using Settings = std::vector<std::string>;

struct Row {
  ModelSpec model;
  Settings settings;
  std::vector<std::string> expected;
};

void expect_errors(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    const LoadedConfig loaded = load_config({.set = row.settings});
    EXPECT_TRUE(loaded.errors.empty());
    std::vector<std::string> found;
    for (const Error& error : validate_layout(row.model, loaded.config)) found.push_back(error.message());
    EXPECT_EQ(found, row.expected) << ::testing::PrintToString(row.settings);
  }
}

// 4 layers, 4 query and 2 KV heads, 72 columns, 64 tokens, 16 positions: 6 places for stages.
test::Shape tiny_shape() {
  return {.layers = 4, .hidden = 32, .heads = 4, .kv_heads = 2, .ffn = 72, .vocab = 64, .max_positions = 16};
}
ModelSpec tiny() { return test::dense_model(tiny_shape()); }
ModelSpec tiny(int64_t test::Shape::* field, int64_t value) {
  test::Shape shape = tiny_shape();
  shape.*field = value;
  return test::dense_model(shape);
}
// Tiny rows have 16 tokens at most.
Settings with(Settings settings) {
  settings.insert(settings.begin(), "batch.sequence=16");
  return settings;
}
ModelSpec mixer(MixerKind kind) {
  ModelSpec model = test::dense_model();
  for (LayerSpec& layer : model.layers) layer.mixer.kind = kind;
  return model;
}

TEST(ValidateSplits, TensorParallelism) {
  const ModelSpec large = test::dense_model();  // 32 query and 8 KV heads
  expect_errors({
      {large,
       {"parallel.tp=5"},
       {"parallel.tp: 5 does not divide 32 attention heads (use tp = 4 or 8)",
        "parallel.tp: 5 and 8 KV heads: neither divides the other (use tp = 4 or 8)"}},
      {large,
       {"parallel.tp=6", "parallel.sp=true"},
       {"parallel.tp: 6 does not divide 32 attention heads (use tp = 4 or 8)",
        "parallel.tp: 6 and 8 KV heads: neither divides the other (use tp = 4 or 8)"}},
      {large,
       {"parallel.tp=12"},
       {"parallel.tp: 12 does not divide 32 attention heads (use tp = 8 or 16)",
        "parallel.tp: 12 and 8 KV heads: neither divides the other (use tp = 8 or 16)"}},
      {large, {"parallel.tp=128"}, {"parallel.tp: 128 does not divide 32 attention heads (use tp = 32)"}},
      {tiny(),
       with({"parallel.tp=3"}),
       {"parallel.tp: 3 does not divide 4 attention heads (use tp = 2 or 4)",
        "parallel.tp: 3 and 2 KV heads: neither divides the other (use tp = 2 or 4)"}},
      {tiny(), with({"parallel.tp=8"}), {"parallel.tp: 8 does not divide 4 attention heads (use tp = 4)"}},
      // Three rows over four ranks: one each, and a rank without any.
      {tiny(&test::Shape::vocab, 3),
       with({"parallel.tp=4"}),
       {"parallel.tp: 3 rows of the vocabulary leave some of 4 ranks none (use tp = 2)"}},
      // Five columns over four ranks: 2, 2, 1 and none.
      {tiny(&test::Shape::ffn, 5),
       with({"parallel.tp=4", "parallel.sp=true"}),
       {"parallel.tp: 5 columns of the MLP leave some of 4 ranks none (use tp = 2)"}},
      {test::expert_model(),
       {"parallel.tp=3", "parallel.sp=true"},
       {"parallel.tp: 3 does not divide 32 attention heads (use tp = 2 or 4)",
        "parallel.tp: 3 and 8 KV heads: neither divides the other (use tp = 2 or 4)"}},
  });
}

TEST(ValidateSplits, ContextParallelism) {
  const auto ulysses = [](Settings settings) {
    settings.push_back("parallel.cp_kind=ulysses");
    return settings;
  };
  expect_errors({
      {test::dense_model(),
       ulysses({"parallel.cp=8", "parallel.tp=8"}),
       {"parallel.cp: ulysses cannot split 4 query and 1 KV heads per tp rank over 8 ranks (use cp = 4, or cp_kind = "
        "ring)"}},
      {tiny(),
       ulysses(with({"parallel.cp=3"})),
       {"parallel.cp: ulysses cannot split 4 query and 2 KV heads per tp rank over 3 ranks (use cp = 2 or 4, or "
        "cp_kind = ring)"}},
      {tiny(),
       ulysses(with({"parallel.cp=8"})),
       {"parallel.cp: ulysses cannot split 4 query and 2 KV heads per tp rank over 8 ranks (use cp = 4, or cp_kind = "
        "ring, or tp = 4 with cp = 2 and cp_kind = ring)"}},
      // A rank has one query head, with a KV head that two ranks share.
      {tiny(),
       ulysses(with({"parallel.cp=2", "parallel.tp=4"})),
       {"parallel.cp: ulysses cannot split 1 query and 1 KV heads per tp rank over 2 ranks (use cp = 1, or cp_kind = "
        "ring)"}},
      {mixer(MixerKind::kLatentAttention),
       ulysses({"parallel.cp=5"}),
       {"parallel.cp: ulysses cannot split 32 query and 32 KV heads per tp rank over 5 ranks (use cp = 4 or 8, or "
        "cp_kind = ring)"}},
      {mixer(MixerKind::kLinearAttention),
       {"parallel.cp=2"},
       {"parallel.cp: splits attention over the sequence; this model has recurrent layers (use cp = 1)"}},
      {mixer(MixerKind::kMamba2),
       {"parallel.cp=4", "parallel.cp_kind=all_gather"},
       {"parallel.cp: splits attention over the sequence; this model has recurrent layers (use cp = 1)"}},
  });
}

TEST(ValidateSplits, StagesAndChunks) {
  const auto pipeline = [](const char* schedule, int p, int v, int global) {
    return with({std::string("parallel.schedule=") + schedule, "parallel.pp=" + std::to_string(p),
                 "parallel.vpp=" + std::to_string(v), "batch.global=" + std::to_string(global)});
  };
  std::vector<Row> rows = {
      {tiny(),
       pipeline("1f1b", 7, 1, 7),
       {"parallel.pp: 7 stages are more than embedding, 4 layers and head (use pp = 6)"}},
      {tiny(&test::Shape::layers, 1),
       pipeline("gpipe", 4, 1, 4),
       {"parallel.pp: 4 stages are more than embedding, 1 layers and head (use pp = 3)"}},
      // Two chunks each on four ranks are eight; three ranks have six.
      {tiny(),
       pipeline("interleaved", 4, 2, 4),
       {"parallel.vpp: 4 x 2 chunks are more than embedding, 4 layers and head (use pp = 3 with vpp = 2)"}},
      {tiny(),
       pipeline("zbv", 4, 2, 8),
       {"parallel.vpp: 4 x 2 chunks are more than embedding, 4 layers and head (use pp = 3 with vpp = 2)"}},
      {tiny(),
       pipeline("interleaved", 2, 4, 2),
       {"parallel.vpp: 2 x 4 chunks are more than embedding, 4 layers and head (use vpp = 3)"}},
      {tiny(&test::Shape::layers, 1),
       pipeline("zbv", 2, 2, 4),
       {"parallel.vpp: 2 x 2 chunks are more than embedding, 1 layers and head (use pp = 1 with vpp = 1)"}},
      {tiny(),
       pipeline("v-half", 3, 3, 6),
       {"parallel.vpp: 3 x 3 chunks are more than embedding, 4 layers and head (use vpp = 2)",
        "parallel.vpp: schedule v-half has two chunks a rank, vpp is 3 (use vpp = 2)"}},
      {tiny(),
       pipeline("1f1b", 3, 3, 6),
       {"parallel.vpp: 3 x 3 chunks are more than embedding, 4 layers and head (use vpp = 1)",
        "parallel.vpp: schedule 1f1b has one chunk a rank, vpp is 3 (use vpp = 1, or schedule = interleaved)"}},
      {tiny(),
       pipeline("zbv", 1, 3, 4),
       {"parallel.vpp: 3 chunks a rank need a pipeline, pp is 1 (use vpp = 1, or pp = 2)"}},
      {tiny(),
       pipeline("interleaved", 3, 1, 3),
       {"parallel.vpp: schedule interleaved needs several chunks a rank, vpp is 1 (use vpp = 2, or schedule = 1f1b)"}},
  };
  for (const std::string schedule : {"naive", "gpipe", "zb1p", "zb2p"})
    rows.push_back({tiny(),
                    pipeline(schedule.c_str(), 2, 2, 4),
                    {"parallel.vpp: schedule " + schedule +
                     " has one chunk a rank, vpp is 2 (use vpp = 1, or schedule = interleaved)"}});
  for (const std::string schedule : {"zbv", "v-half", "v-min", "dualpipev"})
    rows.push_back({tiny(),
                    pipeline(schedule.c_str(), 2, 1, 4),
                    {"parallel.vpp: schedule " + schedule + " has two chunks a rank, vpp is 1 (use vpp = 2)"}});
  expect_errors(rows);
}

TEST(ValidateSplits, Microbatches) {
  expect_errors({
      {tiny(),
       with({"parallel.pp=3", "parallel.vpp=2", "parallel.schedule=interleaved", "batch.global=4"}),
       {"batch.global: schedule interleaved takes the microbatches in rounds of pp: 4 is not a multiple of 3 (use "
        "global "
        "= 3 or 6, or schedule = 1f1b with vpp = 1)"}},
      {tiny(),
       with({"parallel.pp=2", "parallel.vpp=2", "parallel.schedule=interleaved", "parallel.dp=2", "batch.micro=2",
             "batch.global=12"}),
       {"batch.global: schedule interleaved takes the microbatches in rounds of pp: 3 is not a multiple of 2 (use "
        "global "
        "= 8 or 16, or schedule = 1f1b with vpp = 1)"}},
      {tiny(),
       with({"parallel.pp=3", "parallel.vpp=2", "parallel.schedule=dualpipev", "batch.global=5"}),
       {"batch.global: schedule dualpipev needs at least 2 pp = 6 microbatches, there are 5 (use global = 6 or more)"}},
      {tiny(),
       with({"parallel.pp=2", "parallel.vpp=2", "parallel.schedule=dualpipev"}),
       {"batch.global: schedule dualpipev needs at least 2 pp = 4 microbatches, there are 1 (use global = 4 or more)"}},
      {tiny(),
       with({"batch.global=7", "parallel.dp=2"}),
       {"batch.global: 7 sequences cannot be split into microbatches of 1 over 2 replicas (use 6 or 8)"}},
      {tiny(),
       with({"batch.global=2", "parallel.dp=4"}),
       {"batch.global: 2 sequences cannot be split into microbatches of 1 over 4 replicas (use 4)"}},
      {tiny(),
       with({"batch.global=9", "batch.micro=2", "parallel.dp=2", "parallel.pp=2"}),
       {"batch.global: 9 sequences cannot be split into microbatches of 2 over 2 replicas (use 8 or 12)"}},
  });
}

TEST(ValidateSplits, ShardsPositionsAndExperts) {
  expect_errors({
      {tiny(),
       with({"parallel.dp=2", "parallel.cp=2", "parallel.shard_size=3"}),
       {"parallel.shard_size: 3 does not divide the 4 ranks of dp x cp (use shard_size = 2 or 4)"}},
      {tiny(),
       with({"parallel.dp=2", "parallel.shard_size=4"}),
       {"parallel.shard_size: 4 does not divide the 2 ranks of dp x cp (use shard_size = 2)"}},
      // Ranks of tp do not hold the same weights.
      {tiny(),
       with({"parallel.tp=2", "parallel.shard_size=2"}),
       {"parallel.shard_size: 2 does not divide the 1 ranks of dp x cp (use shard_size = 1)"}},
      {tiny(),
       with({"parallel.pp=2", "parallel.dp=3", "parallel.shard_size=2"}),
       {"parallel.shard_size: 2 does not divide the 3 ranks of dp x cp (use shard_size = 1 or 3)"}},
      {tiny(),
       with({"parallel.cp=4", "parallel.shard_size=4", "parallel.zero=0"}),
       {"parallel.shard_size: 4 ranks cannot share a shard at ZeRO level 0 (use zero = 1, or shard_size = 0)"}},
      {tiny(),
       {"batch.sequence=17"},
       {"batch.sequence: 17 tokens are more than the 16 positions of the model (use sequence = 16)"}},
      {tiny(),
       {"batch.sequence=20", "parallel.cp=2", "parallel.tp=2", "parallel.sp=true"},
       {"batch.sequence: 20 tokens are more than the 16 positions of the model (use sequence = 16)"}},
      {tiny(),
       with({"parallel.ep=2"}),
       {"parallel.ep: ep x etp = 2 does not divide the 1 ranks of a stage (tp x cp x dp) (use ep = 1)",
        "parallel.ep: 2 needs a model with experts (use ep = 1)"}},
      {test::expert_model(),
       {"parallel.ep=4", "parallel.etp=2", "parallel.dp=6"},
       {"parallel.ep: ep x etp = 8 does not divide the 6 ranks of a stage (tp x cp x dp) (use ep = 3)"}},
  });
}

// Padding is not refused: tokens to equal chunks, rows and columns to equal parts, positions padded beyond the last
// one.
TEST(ValidateSplits, WhatIsPaddedIsLegal) {
  test::Shape odd = tiny_shape();
  odd.vocab = 61, odd.ffn = 70;
  expect_errors({{test::dense_model(odd), with({"parallel.tp=4", "parallel.cp=3", "parallel.sp=true"}), {}},
                 {tiny(), {"batch.sequence=13", "parallel.cp=4", "parallel.tp=2", "parallel.sp=true"}, {}},
                 {tiny(), {"batch.sequence=1", "parallel.cp=2"}, {}},
                 {tiny(), with({"parallel.pp=6", "batch.global=1"}), {}}});
}

// What one process does not start, however the ranks come about.
TEST(ValidateSplits, RanksOfOneProcess) {
  const auto engine = [](const Settings& settings) {
    const LoadedConfig loaded = load_config({.set = settings});
    std::vector<std::string> found;
    for (const Error& error : validate_engine(test::dense_model(), loaded.config)) found.push_back(error.message());
    return found;
  };
  EXPECT_EQ(engine({"parallel.tp=4", "parallel.dp=100"}),
            (std::vector<std::string>{"parallel.dp: 400 ranks are too many threads for one process (use dp = 64)"}));
  EXPECT_EQ(engine({"parallel.tp=32", "parallel.cp=16"}),
            (std::vector<std::string>{"parallel.dp: 512 ranks are too many threads for one process (use dp x tp x cp x "
                                      "pp = 256 or fewer)"}));
}

}  // namespace
}  // namespace fivefold
