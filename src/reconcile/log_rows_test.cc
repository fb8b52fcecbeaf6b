// Logs of other frameworks beside predictions, on published runs.
#include "reconcile/log_rows.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "reconcile/log_testing.h"

namespace fivefold {
namespace {

const ReconcileRow* row_of(const Reconciliation& result, const std::string& quantity, int rank = kAllRanks) {
  for (const ReconcileRow& row : result.rows)
    if (row.quantity == quantity && row.rank == rank) return &row;
  return nullptr;
}
bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

// torchtitan's benchmark of December 2024: Llama-3.1-8B on 8 H100, local batch 2, selective recompute: 77.0 GiB and
// 6,667 tokens/s with compiled layers. Its loss then had its logits, an fp32 copy and their gradients side by side.
FrameworkPrediction titan() {
  RunConfig config = framework_config(Framework::kFsdp2, {.dp = 8, .zero = 3});
  config.batch = {.global = 16, .micro = 2, .sequence = 8192};
  config.recompute.kind = RecomputeKind::kSelective;
  return predicted("llama-3.1-8b", "dgx-h100", config);
}
ForeignLog titan_log(const std::string& gib, const std::string& tps) {
  std::string text = "[rank0]:- INFO - step:  1  loss: 12.27  memory: " + gib + "GiB(70.00%)  tps: 100  mfu: 7.00%\n";
  for (const char* step : {"10", "20"})
    text += std::string("[rank0]:- INFO - step: ") + step + "  loss: 9.27  memory: " + gib +
            "GiB(70.00%)  tps: " + tps + "  tflops: 386.1  mfu: 39.04%\n";
  return parse_foreign_log(text, "log").value();
}

TEST(LogRows, ThePublishedRunPassesWithItsOwnLoss) {
  FrameworkPrediction prediction = titan();
  const ForeignLog log = titan_log("77.00", "6,667");
  const Reconciliation assumed = reconcile_log(prediction, log);
  const ReconcileRow* memory = row_of(assumed, "memory.peak.reserved", 0);
  ASSERT_NE(memory, nullptr);
  EXPECT_DOUBLE_EQ(memory->measured, 77 * 0x1p30);
  EXPECT_FALSE(memory->pass());
  EXPECT_TRUE(has(memory->cause, "cross_entropy = eager")) << memory->cause;
  EXPECT_TRUE(has(memory->cause, "nobody has said"));

  prediction.config.framework.switches = {"cross_entropy=eager"};
  prediction = predict_framework(prediction.model, prediction.config, prediction.hardware).value();
  const Reconciliation stated = reconcile_log(prediction, log);
  EXPECT_TRUE(stated.pass());
  EXPECT_DOUBLE_EQ(row_of(stated, "tokens_per_s.gpu")->measured, 6667);
  // 16 x 8,192 tokens / 8 GPUs / 6,667.
  EXPECT_NEAR(row_of(stated, "time.step")->measured, 16384 / 6667.0, 1e-9);
}

TEST(LogRows, BoundsAreTheProfilesErrors) {
  const Reconciliation result = reconcile_log(titan(), titan_log("77.00", "6,667"));
  const ReconcileRow* memory = row_of(result, "memory.peak.reserved", 0);
  EXPECT_NEAR(*memory->bound / *memory->predicted, 0.14, 1e-9);
  bool said = false;
  for (const std::string& note : result.notes) said = said || has(note, "torchtune_torchao");
  EXPECT_TRUE(said);
}

// SimuMax's B200 run 'llama3-405b 4 layers, tp 8': worked in docs/profiles.md: 38.40 GiB predicted, 38.57 measured.
TEST(LogRows, MegatronByRankAndBetweenSteps) {
  RunConfig config = framework_config(Framework::kMegatron, {.dp = 2, .tp = 4, .sp = true, .pp = 2, .zero = 1});
  config.batch = {.global = 32, .micro = 1, .sequence = 4096};
  const FrameworkPrediction prediction = predicted("llama-3-8b", "dgx-h100", config);
  const auto mib = [](int64_t bytes) { return std::to_string(static_cast<double>(bytes) / 0x1p20); };
  const int64_t first = predicted_figure(prediction.run, LoggedMemoryKind::kAllocated, ReportedRank::kFirst),
                last = predicted_figure(prediction.run, LoggedMemoryKind::kAllocated, ReportedRank::kLast),
                between = predicted_figure(prediction.run, LoggedMemoryKind::kBetweenSteps, ReportedRank::kFirst);
  ASSERT_NE(first, last);
  const ForeignLog log = parse_foreign_log("[Rank 0] (after 2 iterations) memory (MB) | allocated: " + mib(between) +
                                               " | max allocated: " + mib(first) +
                                               " | reserved: 0 | max reserved: " + mib(first + 20 * kGiB) +
                                               "\n[Rank 8] (after 2 iterations) memory (MB) | "
                                               "allocated: 1.0 | max allocated: " +
                                               mib(last) + " | reserved: 0 | max reserved: " + mib(last) + "\n",
                                           "log")
                             .value();
  const Reconciliation result = reconcile_log(prediction, log);
  EXPECT_NEAR(*row_of(result, "memory.peak.allocated", 0)->difference(), 0, 1e6);
  EXPECT_NEAR(*row_of(result, "memory.peak.allocated", 8)->difference(), 0, 1e6);
  EXPECT_NEAR(*row_of(result, "memory.between_steps", 0)->difference(), 0, 1e6);
  const ReconcileRow* reserved = row_of(result, "memory.peak.reserved", 0);
  EXPECT_FALSE(reserved->pass());
  EXPECT_TRUE(has(reserved->cause, "fragmentation: 20.00 GiB reserved")) << reserved->cause;
}

TEST(LogRows, ContradictedArgumentsAreNoted) {
  RunConfig config = framework_config(Framework::kMegatron, {.dp = 2, .tp = 4, .zero = 1});
  config.batch = {.global = 32, .micro = 1, .sequence = 4096};
  const ForeignLog log = parse_foreign_log(
                             "---- arguments ----\n  tensor_model_parallel_size ..... 8\n  micro_batch_size ..... "
                             "1\n---- end of arguments ----\n"
                             " iteration 10/ 100 | elapsed time per iteration (ms): 1000.0 |\n",
                             "log")
                             .value();
  const Reconciliation result = reconcile_log(predicted("llama-3-8b", "dgx-h100", config), log);
  ASSERT_FALSE(result.notes.empty());
  EXPECT_EQ(result.notes.front(), "the log's run had tensor_model_parallel_size = 8, the configuration 4");
}

TEST(LogRows, IdleCardsAndRanksOfOtherRunsAreLeftOut) {
  ForeignLog log = titan_log("77.00", "6,667");
  add_log(log, parse_foreign_log("index, memory.used [MiB]\n0, 81000 MiB\n5, 2 MiB\n", "smi").value());
  add_log(log, parse_foreign_log("[Rank 64] memory (MB) | allocated: 1.0 | max allocated: 5.0 |\n", "other").value());
  const Reconciliation result = reconcile_log(titan(), log);
  EXPECT_NE(row_of(result, "memory.peak.process", 0), nullptr);
  EXPECT_EQ(row_of(result, "memory.peak.process", 5), nullptr);
  EXPECT_EQ(row_of(result, "memory.peak.allocated", 64), nullptr);
  EXPECT_EQ(result.notes.front(), "the log has rank 64, the configuration 8 ranks");
}

// 8 nodes at a fifth of the predicted pace.
TEST(LogRows, APaceFarBelowIsHeldAgainstTheNetwork) {
  RunConfig config = framework_config(Framework::kFsdp2, {.dp = 64, .zero = 3});
  config.batch = {.global = 64, .micro = 1, .sequence = 8192};
  config.recompute.kind = RecomputeKind::kFull;
  const FrameworkPrediction prediction = predicted("llama-3.1-70b", "dgx-h100", config);
  const double fifth = prediction.time->tokens_per_s / 5;
  const auto link = explain_by_network(prediction, fifth);
  ASSERT_TRUE(link);
  EXPECT_LT(link->bytes_per_s, link->stated_bytes_per_s / 4);
  // With links of that pace the run is predicted as measured.
  FrameworkPrediction slow = prediction;
  slow.hardware.network.bytes_per_s.value = link->bytes_per_s;
  EXPECT_NEAR(framework_time(slow.run, slow.hardware)->tokens_per_s / fifth, 1, 0.02);
  const ForeignLog log = titan_log("70.00", std::to_string(static_cast<int>(fifth)));
  EXPECT_TRUE(has(row_of(reconcile_log(prediction, log), "tokens_per_s.gpu")->cause, "inter-node bandwidth first"));
}

}  // namespace
}  // namespace fivefold
