#include "planner/published/validation.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/installation.h"
#include "spec/hardware.h"

namespace fivefold {
namespace {

using Fields = std::map<std::string, std::string, std::less<>>;

// A dense run whose shape and layout are stated in full; `more` replaces or adds cells, "" takes one away.
PublishedRun run_with(const Fields& more) {
  PublishedRun run{.fields = {{"id", "r1"},
                              {"source", "simumax_b200_real"},
                              {"model", "small"},
                              {"layers", "2"},
                              {"hidden", "1024"},
                              {"heads", "8"},
                              {"kv_heads", "8"},
                              {"head_dim", "128"},
                              {"ffn", "4096"},
                              {"vocab", "32000"},
                              {"gated_ffn", "1"},
                              {"tied_emb", "0"},
                              {"seq_len", "4096"},
                              {"micro_batch", "1"},
                              {"global_batch", "8"},
                              {"gpu", "B200-180GB"},
                              {"n_gpus", "8"},
                              {"dp", "8"},
                              {"tp", "1"},
                              {"sp", "no"},
                              {"pp", "1"},
                              {"precision", "bf16, fp32 grad accumulation"},
                              {"mem_gib_per_gpu", "50"},
                              {"mem_trust", "A"},
                              {"split", "train"}},
                   .where = "runs.csv:2"};
  for (const auto& [column, cell] : more) {
    run.fields[column] = cell;
    if (cell.empty()) run.fields.erase(column);
  }
  return run;
}

const HardwareSpec* no_hardware(const std::string&) { return nullptr; }

ValidatedRow validated(const Fields& more, int64_t capacity = 0) {
  HardwareSpec hardware;
  hardware.device.memory_bytes.value = static_cast<double>(capacity);
  return validate_runs({run_with(more)}, [&](const std::string&) { return capacity > 0 ? &hardware : nullptr; })
      .rows.at(0);
}

TEST(Validation, MeasuredFiguresAreGibibytesUnlessTheSourcePrintsPowersOfTen) {
  EXPECT_EQ(validated({}).measured_peak, int64_t{50} << 30);
  EXPECT_EQ(validated({{"mem_kind", "torch.cuda.max_memory_allocated, GB=1e9"}}).measured_peak, 50'000'000'000);
  EXPECT_EQ(validated({{"mem_gib_per_gpu", ""}}).measured_peak, 0);
}

TEST(Validation, TrustAAndBAreScoredAndCIsLookedAt) {
  EXPECT_TRUE(validated({}).memory_scored());
  EXPECT_TRUE(validated({{"mem_trust", "B"}}).memory_scored());
  EXPECT_FALSE(validated({{"mem_trust", ""}}).memory_scored());
  const Validation looked_at = validate_runs({run_with({{"mem_trust", "C"}})}, no_hardware);
  EXPECT_EQ(looked_at.sources.at(0).memory.n, 0);
  EXPECT_EQ(looked_at.sources.at(0).looked_at.n, 1);
}

TEST(Validation, ExcludedRowsAreNeverPredicted) {
  const Validation v = validate_runs({run_with({{"split", "exclude"}})}, no_hardware);
  EXPECT_NE(v.rows.at(0).skipped.find("exclude"), std::string::npos);
  EXPECT_EQ(v.sources.at(0).memory.n, 0);
  // It is no row that could have been scored.
  EXPECT_EQ(v.sources.at(0).measured, 0);
  EXPECT_EQ(v.sources.at(0).skipped, 0);
}

TEST(Validation, SkippedRowsCountWhereSomethingWasMeasured) {
  const Validation v = validate_runs(
      {run_with({{"id", "a"}, {"hidden", ""}}), run_with({{"id", "b"}, {"hidden", ""}, {"mem_gib_per_gpu", ""}}),
       run_with({{"id", "c"}}), run_with({{"id", "d"}})},
      no_hardware);
  const SourceScore& score = v.sources.at(0);
  EXPECT_EQ(score.rows, 4);
  EXPECT_EQ(score.measured, 3);
  EXPECT_EQ(score.skipped, 1);
  EXPECT_DOUBLE_EQ(score.skipped_share(), 1.0 / 3);
  ASSERT_EQ(score.reasons.size(), 1u);
  EXPECT_EQ(score.reasons.begin()->first, "the model's shape is not stated");
  EXPECT_EQ(score.memory.n, 2);
}

TEST(Validation, OnlyOutcomesThatNameMemoryCount) {
  EXPECT_EQ(validated({{"outcome", "ok"}}).ran, true);
  EXPECT_EQ(validated({{"outcome", "fits (largest stated)"}}).ran, true);
  EXPECT_EQ(validated({{"outcome", "oom"}}).ran, false);
  EXPECT_EQ(validated({{"outcome", "oom_or_failed"}}).ran, false);
  EXPECT_EQ(validated({{"outcome", "failed(OOM/crash/timeout not distinguished)"}}).ran, std::nullopt);
  EXPECT_EQ(validated({{"outcome", "oom in 30-60% of runs"}}).ran, std::nullopt);
  EXPECT_EQ(validated({}).ran, std::nullopt);
}

TEST(Validation, FitIsPredictedAgainstTheGpuOfTheRow) {
  EXPECT_EQ(validated({{"outcome", "ok"}}, int64_t{180} << 30).predicted_fits, true);
  EXPECT_EQ(validated({{"outcome", "ok"}}, int64_t{1} << 30).predicted_fits, false);
  // Neither a known GPU nor its size.
  EXPECT_EQ(validated({{"gpu", "a GPU that nobody knows"}}).predicted_fits, std::nullopt);
  EXPECT_EQ(validated({{"gpu", "a GPU that nobody knows"}, {"gpu_mem_gb", "1"}}).predicted_fits, false);
}

TEST(Validation, PartsStandApartWhereASourceHasSeveral) {
  const Fields experts = {{"moe_experts", "8"}, {"moe_topk", "2"}, {"moe_ffn", "1024"}};
  const Fields small = {{"mem_gib_per_gpu", "3.9"}};
  const Validation v = validate_runs({run_with({}), run_with(experts), run_with(small)}, no_hardware);
  const std::vector<PartScore>& parts = v.sources.at(0).parts;
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].part, "dense, 4 GiB or more");
  EXPECT_EQ(parts[1].part, "dense, under 4 GiB");
  EXPECT_EQ(parts[2].part, "experts");
  for (const PartScore& part : parts) EXPECT_EQ(part.memory.n, 1) << part.part;
  EXPECT_TRUE(validate_runs({run_with({})}, no_hardware).sources.at(0).parts.empty());
}

TEST(Validation, HalvesAreOfWholeClasses) {
  // Sequence and batch do not move a row to the other half; models do, about every second time.
  EXPECT_EQ(is_held_out(run_with({{"seq_len", "8192"}, {"micro_batch", "4"}, {"id", "x"}})), is_held_out(run_with({})));
  int held_out = 0;
  for (int i = 0; i < 200; ++i) held_out += is_held_out(run_with({{"model", "model " + std::to_string(i)}}));
  EXPECT_GT(held_out, 70);
  EXPECT_LT(held_out, 130);
}

TEST(Validation, RowsOfOwnSourcesNameTheirFramework) {
  EXPECT_EQ(validated({{"source", "mine"}}).skipped, "of a framework without a profile: mine");
  EXPECT_EQ(validated({{"source", "mine"}, {"framework", "megatorn"}}).skipped,
            "of a framework without a profile: mine");
  EXPECT_EQ(validated({{"source", "mine"}, {"framework", "megatron"}}).skipped, "");
  // What a known source says once for all of its rows is no habit of the framework.
  const std::string reason = "sequence or micro-batch is not stated";
  EXPECT_NE(validated({{"source", "fms_acceleration_finetune"}, {"seq_len", ""}}).skipped, reason);
  EXPECT_EQ(validated({{"source", "mine"}, {"framework", "hf"}, {"seq_len", ""}}).skipped, reason);
}

TEST(Validation, RowsOfOneIdAreOneRun) {
  const std::vector<PublishedRun> merged = merged_runs(
      {run_with({}), run_with({{"mem_gib_per_gpu", "60"}, {"outcome", "ok"}}), run_with({{"id", "other"}})});
  ASSERT_EQ(merged.size(), 2u);
  EXPECT_EQ(merged[0].text("mem_gib_per_gpu"), "50");
  EXPECT_EQ(merged[0].text("outcome"), "ok");
  EXPECT_EQ(merged[1].id(), "other");
}

TEST(Validation, SourcesStandInTheOrderOfTheirRows) {
  const Validation v = validate_runs(
      {run_with({{"source", "torchtitan"}}), run_with({}), run_with({{"source", "torchtitan"}, {"id", "r2"}})},
      no_hardware);
  ASSERT_EQ(v.sources.size(), 2u);
  EXPECT_EQ(v.sources[0].source, "torchtitan");
  EXPECT_EQ(v.sources[0].rows, 2);
}

// Llama-3-8B's layers on eight cards of one node: as the hardware's file says, and without one.
TEST(Validation, ThroughputIsOfOneGpu) {
  const auto hardware = read_hardware(std::filesystem::path(installation().configs) / "clusters" / "dgx-h100.toml");
  ASSERT_TRUE(hardware.ok());
  const auto h100 = [&](const std::string&) { return &*hardware; };
  const Fields row = {{"gpu", "H100-80GB"}, {"step_time_s", "2.0"}, {"time_trust", "A"}};
  const ValidatedRow with = validate_runs({run_with(row)}, h100).rows.at(0);
  EXPECT_GT(with.measured_tokens_per_s, 0);
  EXPECT_GT(with.predicted_tokens_per_s, 0);
  EXPECT_TRUE(with.time_scored());
  const Validation without = validate_runs({run_with(row)}, no_hardware);
  EXPECT_EQ(without.rows.at(0).time_skipped, "the GPU has no file");
  EXPECT_EQ(without.sources.at(0).time_skipped, 1);
  Fields shorter = row;
  shorter["notes"] = "mean length shorter: time is NOT at seq_len";
  EXPECT_EQ(validate_runs({run_with(shorter)}, h100).sources.at(0).throughput.n, 0);
}

// The fastest run is known: what the prediction is off there is taken from the other.
TEST(Validation, AnAnchorScalesItsLike) {
  const HardwareSpec node =
      read_hardware(std::filesystem::path(installation().configs) / "clusters" / "dgx-b200.toml").value();
  const auto hardware_of = [&](const std::string&) { return &node; };
  const std::vector<PublishedRun> runs = {
      run_with({{"tokens_per_s_per_gpu", "90000"}, {"time_trust", "A"}, {"global_batch", "8"}}),
      run_with({{"id", "r2"}, {"tokens_per_s_per_gpu", "100000"}, {"time_trust", "A"}, {"global_batch", "64"}})};
  const Validation plain = validate_runs(runs, hardware_of), anchored = validate_runs(runs, hardware_of, true);
  ASSERT_GT(plain.rows[0].predicted_tokens_per_s, 0);
  EXPECT_FALSE(plain.rows[1].anchor);
  EXPECT_TRUE(anchored.rows[1].anchor);
  EXPECT_FALSE(anchored.rows[1].time_scored());
  EXPECT_NEAR(anchored.rows[1].predicted_tokens_per_s, 100000, 1e-6);
  EXPECT_NEAR(anchored.rows[0].predicted_tokens_per_s / plain.rows[0].predicted_tokens_per_s,
              100000 / plain.rows[1].predicted_tokens_per_s, 1e-12);
  EXPECT_EQ(anchored.sources[0].throughput.n, 1);
  EXPECT_EQ(plain.sources[0].throughput.n, 2);
}

}  // namespace
}  // namespace fivefold
