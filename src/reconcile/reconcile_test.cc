// Each kind of difference, planted into a record that otherwise keeps its plan, is found and named.
#include "reconcile/reconcile.h"

#include <nlohmann/json.hpp>

#include "reconcile/reconcile_testing.h"

namespace fivefold {
namespace {

using namespace reconcile_testing;
using Names = std::vector<std::string>;

Reconciliation reconciled(const PlannedRun& run, const PlannedRun* baseline = nullptr) {
  auto result = reconcile(run, baseline);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message());
  return result.ok() ? *std::move(result) : Reconciliation{};
}

TEST(Reconcile, ARunThatKeepsItsPlanHasNoDifference) {
  const Reconciliation result = reconciled(example_run());
  EXPECT_TRUE(result.pass());
  for (const ReconcileRow& row : result.rows) {
    if (!row.predicted || row.quantity == "memory.rss_above_idle") continue;
    EXPECT_NEAR(*row.difference(), 0, 1e-9) << row.quantity;
    if (row.section != RowSection::kAcceptance) {
      EXPECT_EQ(row.cause, "") << row.quantity;
    }
  }
  EXPECT_TRUE(result.notes.empty());
}

// ---- memory ----

TEST(Reconcile, NamesTheBufferThatMakesUpADifference) {
  PlannedRun run = example_run();
  // Weights of layers.0: 256 + 192 x 64 + 64 x 64 + 256 + 256 x 64 + 64 x 128 = 41472 elements, 82944 bytes in bf16.
  for (StepRecord& step : steps_of(run, 1)) step.peak[Account::kActivations] += 3 * 82944;
  const Reconciliation result = reconciled(run);
  EXPECT_EQ(outside(result), Names{"memory.peak.activations@1"});
  const ReconcileRow row = row_of(result, "memory.peak.activations", 1);
  EXPECT_EQ(*row.difference(), 3 * 82944);
  EXPECT_EQ(row.cause, "more by the size of 3 x the whole weights of layers.0, in every step");
}

TEST(Reconcile, SaysInWhichStepAPeakWasReached) {
  PlannedRun run = example_run();
  steps_of(run, 0)[2].peak[Account::kParams] += 1001;
  run.record.ranks[0].sessions[0].checkpoints.push_back({2, 1.35, 0.02, 5000, "checkpoints/step-2"});
  EXPECT_EQ(row_of(reconciled(run), "memory.peak.params", 0).cause,
            "reached in 1 of 6 steps, first in step 3 (follows a checkpoint)");
}

TEST(Reconcile, FindsALeak) {
  PlannedRun run = example_run();
  for (StepRecord& step : steps_of(run, 0)) {
    step.live[Account::kParams] += 4096 * step.step;
    step.peak[Account::kParams] += 4096 * step.step;
  }
  EXPECT_EQ(row_of(reconciled(run), "memory.peak.params", 0).cause,
            "grows by at least 4.0 KiB a step: buffers are not freed");
}

TEST(Reconcile, BoundsScratchFromAboveOnly) {
  // 1 % of 160 MiB and 4 MiB for one thread: 5.6 MiB.
  PlannedRun run = example_run();
  for (StepRecord& step : steps_of(run, 0)) step.peak[Account::kWorkspace] = 5 * kMiB;
  EXPECT_TRUE(reconciled(run).pass());
  EXPECT_EQ(row_of(reconciled(run), "memory.peak.workspace", 0).cause,
            "scratch that kernels and libraries took without naming it, in every step");
  for (StepRecord& step : steps_of(run, 0)) step.peak[Account::kWorkspace] = 6 * kMiB;
  EXPECT_EQ(outside(reconciled(run)), Names{"memory.peak.workspace@0"});
  run = example_run();
  run.plan.ledger.peak[Account::kWorkspace] = 20 * kMiB;
  EXPECT_TRUE(reconciled(run).pass());
}

TEST(Reconcile, NamesAnAccountThatTheRunDidNotUse) {
  PlannedRun run = example_run();
  for (StepRecord& step : steps_of(run, 0)) step.peak[Account::kLogits] = 0;
  EXPECT_EQ(outside(reconciled(run)), Names{"memory.peak.logits@0"});
  EXPECT_EQ(row_of(reconciled(run), "memory.peak.logits", 0).cause, "planned, but the run held none");
}

TEST(Reconcile, SplitsTheTotalByAccount) {
  PlannedRun run = example_run();
  for (StepRecord& step : steps_of(run, 1)) {
    step.peak_total += 7 * kMiB;  // the bound is 5.6 MiB
    step.at_peak[Account::kWorkspace] = 8 * kMiB;
    step.at_peak[Account::kActivations] -= kMiB;
  }
  const Reconciliation result = reconciled(run);
  EXPECT_EQ(outside(result), Names{"memory.peak_total@1"});
  EXPECT_EQ(row_of(result, "memory.peak_total", 1).cause,
            "at the peak: workspace +8.0 MiB, activations -1.0 MiB; in every step");
}

TEST(Reconcile, SplitsResidentMemory) {
  PlannedRun run = example_run();
  // Predicted 2 x 160 MiB and 5 of libraries, bound 5 % of it = 16.25 MiB. Measured 342: 320 counted, 2 before the
  // model, 5 planned for libraries, 15 beyond.
  run.record.ranks[0].sessions[0].processes[0].rss_peak = (50 + 342) * kMiB;
  const Reconciliation result = reconciled(run);
  EXPECT_EQ(outside(result), Names{"memory.rss_above_idle@0"});
  const ReconcileRow row = row_of(result, "memory.rss_above_idle", 0);
  EXPECT_EQ(*row.predicted, 325 * kMiB);
  EXPECT_EQ(*row.bound, 16.25 * kMiB);
  EXPECT_EQ(row.cause,
            "counted beyond the plan 0 B, resident before the model was made +2.0 MiB, beyond 5.0 MiB of libraries "
            "(allocator's reserve, stacks, file pages; negative: never touched) +15.0 MiB");
}

// A machine that was not calibrated: what libraries take is not known, and nothing is promised of the process.
TEST(Reconcile, BoundsResidentMemoryOnlyWhenLibrariesAreKnown) {
  PlannedRun run = example_run();
  run.plan.library_bytes = 0;
  run.record.ranks[0].sessions[0].processes[0].rss_peak = (50 + 342) * kMiB;
  const Reconciliation result = reconciled(run);
  EXPECT_EQ(outside(result), Names{});
  const ReconcileRow row = row_of(result, "memory.rss_above_idle", 0);
  EXPECT_EQ(*row.predicted, 320 * kMiB);
  EXPECT_FALSE(row.bound);
}

// ---- traffic ----

TEST(Reconcile, ComparesEveryCollective) {
  struct Case {
    int64_t calls, bytes;
    std::string cause;
  };
  // Planned: 3 reduce-scatters, 3000 bytes.
  for (const Case& planted :
       {Case{4, 4000, "4 calls of on average 1000 B instead of 3 of 1000 B"},
        Case{3, 6000, "as many calls with twice the bytes each: an element type of another size on the wire"},
        Case{3, 1500, "as many calls with half the bytes each: an element type of another size on the wire"},
        Case{3, 3001, "as many calls with other sizes"}}) {
    PlannedRun run = example_run();
    for (StepRecord& step : steps_of(run, 1))
      step.traffic[1].calls = planted.calls, step.traffic[1].bytes = planted.bytes;
    const Reconciliation result = reconciled(run);
    Names expected;
    if (planted.calls != 3) expected.push_back("traffic.calls.reduce_scatter.shard.gradients@1");
    expected.push_back("traffic.bytes.reduce_scatter.shard.gradients@1");
    EXPECT_EQ(outside(result), expected);
    EXPECT_EQ(row_of(result, "traffic.bytes.reduce_scatter.shard.gradients", 1).cause, planted.cause);
  }
}

TEST(Reconcile, NamesCollectivesThatOneSideLacks) {
  PlannedRun run = example_run();
  for (StepRecord& step : steps_of(run, 0)) step.traffic[2].purpose = Purpose::kHash;
  const Reconciliation result = reconciled(run);
  EXPECT_EQ(row_of(result, "traffic.bytes.all_gather.shard.parameters", 0).cause, "never called");
  EXPECT_EQ(row_of(result, "traffic.bytes.all_gather.shard.hash", 0).cause, "not in the plan");
  EXPECT_EQ(outside(result).size(), 4u);
}

TEST(Reconcile, NamesTheStepThatDiffers) {
  PlannedRun run = example_run();
  steps_of(run, 0)[3].traffic[2] = {CollectiveKind::kAllGather, GroupKind::kShard, Purpose::kParameters, 6, 6000};
  run.record.ranks[0].sessions[0].evaluations.push_back({3, 5.0, 128, 1.55, 0.01});
  EXPECT_EQ(row_of(reconciled(run), "traffic.calls.all_gather.shard.parameters", 0).cause,
            "6 calls of on average 1000 B instead of 3 of 1000 B; in 1 of 6 steps, step 4 (follows an evaluation)");
}

// ---- program ----

TEST(Reconcile, FindsTheFirstInstructionThatDiffers) {
  PlannedRun run = example_run();
  run.record.ranks[1].sessions[0].program[3].microbatch = 1;
  const Reconciliation result = reconciled(run);
  EXPECT_EQ(outside(result), Names{"program.instructions_as_planned@1"});
  EXPECT_EQ(row_of(result, "program.instructions_as_planned", 1).measured, 3);
  EXPECT_EQ(row_of(result, "program.instructions_as_planned", 1).cause,
            "instruction 3: planned loss head #0, recorded loss head #1");
}

// ---- errors ----

TEST(Reconcile, RefusesRecordsThatCannotBeJoined) {
  PlannedRun run = example_run();
  run.record.ranks.pop_back();
  EXPECT_EQ(reconcile(run).error().message(), "run record: has 1 ranks, the configuration 2");
  run = example_run();
  steps_of(run, 1).clear();
  EXPECT_EQ(reconcile(run).error().problem, "no step was finished in the last session");
  run = example_run();
  run.record.ranks[0].sessions[0].program[0].op = "teleport";
  EXPECT_EQ(reconcile(run).error().where, "run record: program: instruction 0");
}

TEST(Reconcile, NotesWhatCannotBeCompared) {
  PlannedRun run = example_run();
  run.plan.time.reset();
  run.record.ranks[1].cut = true;
  for (int rank : {0, 1}) {
    steps_of(run, rank).resize(2);
    for (StepRecord& step : steps_of(run, rank)) step.times.clear();
  }
  const Reconciliation result = reconciled(run);
  EXPECT_EQ(result.notes.size(), 4u);
  EXPECT_FALSE(row_of(result, "time.step").predicted);
  EXPECT_TRUE(result.pass());
}

// ---- JSON ----

TEST(Reconcile, JsonHasTheDocumentedKeys) {
  PlannedRun run = example_run();
  for (StepRecord& step : steps_of(run, 1)) step.peak[Account::kLogits] += 1;
  const auto json = to_json(reconciled(run));
  EXPECT_FALSE(json["pass"].get<bool>());
  bool seen = false;
  for (const auto& row : json["rows"]) {
    Names keys;
    for (const auto& [key, value] : row.items()) keys.push_back(key);
    EXPECT_EQ(keys, (Names{"quantity", "rank", "predicted", "measured", "difference", "bound", "pass", "cause"}));
    if (row["quantity"] == "memory.peak.logits" && row["rank"] == 1) {
      EXPECT_EQ(row["predicted"], 8388608);
      EXPECT_EQ(row["measured"], 8388609);
      EXPECT_EQ(row["difference"], 1);
      EXPECT_EQ(row["bound"], 0);
      EXPECT_FALSE(row["pass"].get<bool>());
      seen = true;
    }
    if (row["quantity"] == "goodput") {
      EXPECT_TRUE(row["rank"].is_null() && row["predicted"].is_null() && row["bound"].is_null());
    }
  }
  EXPECT_TRUE(seen);
}

TEST(Reconcile, JsonOfALossThatIsNoNumberIsNull) {
  PlannedRun run = example_run();
  steps_of(run, 0).back().loss = std::numeric_limits<double>::quiet_NaN();
  const auto json = to_json(reconciled(run));
  for (const auto& row : json["rows"])
    if (row["quantity"] == "loss.last") {
      EXPECT_TRUE(row["measured"].is_null());
    }
}

}  // namespace
}  // namespace fivefold
