// Planted differences of time: parts, ranks, steps, restarts.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "reconcile/measured_run.h"
#include "reconcile/reconcile_testing.h"

namespace fivefold {
namespace {

using namespace reconcile_testing;

Reconciliation reconciled(const PlannedRun& run, const PlannedRun* baseline = nullptr) {
  auto result = reconcile(run, baseline);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message());
  return result.ok() ? *std::move(result) : Reconciliation{};
}

// In every step of both ranks.
void set_parts(PlannedRun& run, StepPart part, double seconds) {
  for (int rank = 0; rank < static_cast<int>(run.record.ranks.size()); ++rank)
    for (StepRecord& step : steps_of(run, rank)) set_part(step, run.plan, part, seconds);
}

TEST(Median, OfEvenCountsIsTheMean) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(ReconcileTime, AttributesAStepToItsParts) {
  PlannedRun run = example_run();
  set_parts(run, StepPart::kBackward, 0.064);   // 24 ms more
  set_parts(run, StepPart::kOptimizer, 0.014);  // 4 ms more
  set_parts(run, StepPart::kForward, 0.016);    // 4 ms less: 24 ms in all
  const Reconciliation result = reconciled(run);
  const ReconcileRow step = row_of(result, "time.step");
  EXPECT_NEAR(*step.difference(), 0.024, 1e-12);
  EXPECT_EQ(step.cause,
            "of the difference: backward +24.00 ms (100.0 %), optimizer +4.00 ms (16.7 %), forward -4.00 ms (-16.7 %)");
  EXPECT_NEAR(*row_of(result, "time.backward", 0).difference(), 0.024, 1e-12);
}

TEST(ReconcileTime, TheFastestStepIsBounded) {
  PlannedRun run = example_run();
  set_parts(run, StepPart::kBackward, 0.071);  // 31 % of the step more
  EXPECT_EQ(outside(reconciled(run)), std::vector<std::string>{"time.step_fastest@-1"});
  // One quick step is enough; the median tells of the others.
  for (int rank : {0, 1}) set_part(steps_of(run, rank)[4], run.plan, StepPart::kBackward, 0.040);
  const Reconciliation result = reconciled(run);
  EXPECT_TRUE(result.pass());
  EXPECT_EQ(row_of(result, "time.step_fastest").cause, "steps vary: the median is 31.0 % above the fastest");
}

TEST(ReconcileTime, BoundsOnlyTimesOfMeasuredHardware) {
  PlannedRun run = example_run();
  set_parts(run, StepPart::kBackward, 0.4);
  run.plan.time->calibrated = false;
  const Reconciliation result = reconciled(run);
  EXPECT_TRUE(result.pass());
  EXPECT_EQ(result.notes.size(), 1u);
}

TEST(ReconcileTime, NamesAThreadThatWasKeptOffItsCore) {
  PlannedRun run = example_run();
  set_parts(run, StepPart::kBackward, 0.060);
  for (int rank : {0, 1})
    for (StepRecord& step : steps_of(run, rank)) step.times[4].cpu_s = 0.030;
  EXPECT_EQ(row_of(reconciled(run), "time.backward", 0).cause,
            "the thread had a core for 50.0 % of it: other work on the machine");
}

TEST(ReconcileTime, NamesASlowRankAndWhoWaitsForIt) {
  PlannedRun run = example_run();
  for (StepRecord& step : steps_of(run, 1)) set_part(step, run.plan, StepPart::kForward, 0.030);
  for (StepRecord& step : steps_of(run, 0)) set_part(step, run.plan, StepPart::kExposedReductions, 0.015);
  const Reconciliation result = reconciled(run);
  // Rank 1 sets the pace: its parts are shown.
  EXPECT_EQ(row_of(result, "time.forward", 1).cause, "rank 1 takes 30.00 ms, rank 0 20.00 ms");
  EXPECT_NEAR(row_of(result, "time.exposed_reductions", 1).measured, 0.005, 1e-12);
  EXPECT_NEAR(row_of(result, "exposed_communication").measured, (0.005 + 0.015 + 0.002) / 0.110, 1e-12);
  set_parts(run, StepPart::kExposedReductions, 0.015);
  EXPECT_EQ(row_of(reconciled(run), "time.exposed_reductions", 1).cause,
            "rank 0 waits for rank 1, which computes 10.00 ms longer");
}

TEST(ReconcileTime, NamesCollectivesThatAreSlowThemselves) {
  PlannedRun run = example_run();
  set_parts(run, StepPart::kExposedGathers, 0.020);
  EXPECT_EQ(row_of(reconciled(run), "time.exposed_gathers", 0).cause,
            "ranks compute equally long: the collectives themselves are waited for");
}

TEST(ReconcileTime, ComparesWithABaselineOfOneRank) {
  PlannedRun run = example_run(), baseline = example_run(1);
  set_parts(run, StepPart::kBackward, 0.050);
  const Reconciliation result = reconciled(run, &baseline);
  // 64 tokens a rank in 40 ms alone and in 50 ms beside another rank.
  EXPECT_EQ(row_of(result, "time.backward", 0).cause,
            "per token 25.0 % more than with 1 rank(s): ranks share memory and caches");
  // Tokens/s a rank: 64 / 0.11 = 582 against 64 / 0.1 = 640.
  const ReconcileRow scaling = row_of(result, "scaling_efficiency");
  EXPECT_NEAR(scaling.measured, 0.1 / 0.11, 1e-12);
  EXPECT_EQ(scaling.predicted, 1.0);
  EXPECT_EQ(scaling.cause, "582 tokens/s a rank against 640 with 1 rank(s)");
}

TEST(ReconcileTime, LeavesTheFirstStepsOutAndExplainsThem) {
  PlannedRun run = example_run();
  for (int rank : {0, 1}) set_part(steps_of(run, rank)[0], run.plan, StepPart::kForward, 0.220);
  for (int rank : {0, 1}) set_part(steps_of(run, rank)[1], run.plan, StepPart::kForward, 0.120);
  const Reconciliation result = reconciled(run);
  EXPECT_NEAR(row_of(result, "time.step").measured, 0.1, 1e-12);
  EXPECT_NEAR(row_of(result, "time.first_step").measured, 0.3, 1e-12);
  EXPECT_EQ(row_of(result, "time.first_step").cause,
            "the libraries make their kernels and memory is touched for the first time; of the difference: forward "
            "+200.00 ms (100.0 %)");
}

TEST(ReconcileAcceptance, ComputesThroughputAndUtilisation) {
  const Reconciliation result = reconciled(example_run());
  // 4 sequences of 32 tokens in 0.1 s on two ranks; peak 1e11 flops/s = 1e10 a step.
  EXPECT_NEAR(row_of(result, "tokens_per_s").measured, 1280, 1e-6);
  EXPECT_NEAR(row_of(result, "tokens_per_s_per_rank").measured, 640, 1e-6);
  EXPECT_NEAR(row_of(result, "mfu.causal_attention").measured, 0.5, 1e-9);
  EXPECT_NEAR(row_of(result, "mfu.full_attention").measured, 0.6, 1e-9);
  EXPECT_NEAR(row_of(result, "hfu.causal_attention").measured, 0.6, 1e-9);
  EXPECT_NEAR(row_of(result, "hfu.full_attention").measured, 0.7, 1e-9);
  EXPECT_NEAR(row_of(result, "exposed_communication").measured, 0.12, 1e-9);
}

TEST(ReconcileAcceptance, AccountsForAllWallTime) {
  PlannedRun run = example_run();
  RankRecord& rank = run.record.ranks[0];
  // The first session is killed after step 4 (ends at 1.7 s); the second starts 10 s after the first's start, from the
  // checkpoint of step 2, and lasts 2.5 s.
  RecordedSession first = rank.sessions[0];
  first.summary.reset();
  first.steps.resize(4);
  first.checkpoints.push_back({2, 1.3, 0.05, 1000, "checkpoints/step-2"});
  first.evaluations.push_back({2, 5.0, 128, 1.36, 0.02});
  rank.sessions.insert(rank.sessions.begin(), first);
  RecordedSession& second = rank.sessions[1];
  second.start.started_at = 1010;
  second.start.resumed_from = 2;
  const WallTime wall = measure_wall_time(rank);
  EXPECT_NEAR(wall.total_s, 12.5, 1e-9);
  EXPECT_NEAR(wall.steps_s, 0.2 + 0.6, 1e-9);
  EXPECT_NEAR(wall.repeated_s, 0.2, 1e-9);
  EXPECT_EQ(wall.repeated_steps, 2);
  EXPECT_NEAR(wall.down_s, 10 - 1.7, 1e-9);
  EXPECT_NEAR(wall.start_up_s, 2.0, 1e-9);
  EXPECT_NEAR(wall.checkpoints_s, 0.05, 1e-9);
  EXPECT_NEAR(wall.evaluations_s, 0.02, 1e-9);
  // 1.7 - 1 - 0.4 - 0.07 in the first, 2.5 - 1 - 0.6 in the second.
  EXPECT_NEAR(wall.other_s, 0.23 + 0.9, 1e-9);
  const Reconciliation result = reconciled(run);
  EXPECT_NEAR(row_of(result, "goodput").measured, 0.8 / 12.5, 1e-9);
  EXPECT_NEAR(row_of(result, "lost.restarts").measured, 8.5 / 12.5, 1e-9);
  EXPECT_EQ(row_of(result, "lost.restarts").cause, "restarts: 1, steps done again: 2 (200.00 ms), down for 8.30 s");
  double sum = 0;
  for (const char* share :
       {"goodput", "lost.checkpoints", "lost.evaluations", "lost.restarts", "lost.start_up", "lost.other"})
    sum += row_of(result, share).measured;
  EXPECT_NEAR(sum, 1, 1e-9);
}

TEST(ReconcileAcceptance, SummarisesLossAndEvents) {
  PlannedRun run = example_run();
  steps_of(run, 0)[3].updated = false;
  run.record.ranks[0].sessions[0].events.push_back({EventKind::kSkippedStep, 4, 1.6, "no valid tokens"});
  const Reconciliation result = reconciled(run);
  EXPECT_EQ(row_of(result, "loss.first").measured, 5.5);
  EXPECT_EQ(row_of(result, "loss.last").measured, 3.0);
  EXPECT_EQ(row_of(result, "steps_without_update").measured, 1);
  EXPECT_EQ(row_of(result, "steps_without_update").cause, "step 4: no valid tokens");
}

TEST(ReconcileText, OfASmallRun) {
  PlannedRun run = example_run();
  for (StepRecord& step : steps_of(run, 1)) step.peak[Account::kActivations] += 82944;
  set_parts(run, StepPart::kBackward, 0.044);
  const std::string path = std::string(FIVEFOLD_SOURCE_DIR) + "/src/reconcile/testdata/reconcile.txt";
  std::ifstream file(path);
  const std::string golden{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(to_text(reconciled(run)), golden);
}

TEST(PlanJson, IsWrittenWholeAndSaysWhatTheRecordWillSay) {
  const auto folder = std::filesystem::temp_directory_path() / ("fivefold-plan-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(write_plan_json(example_plan(2), folder).ok());
  std::ifstream file(folder / "plan.json");
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["memory"]["peak"], 160 * kMiB);
  EXPECT_EQ(json["memory"]["accounts"]["logits"], 8 * kMiB);
  EXPECT_EQ(json["traffic"][1]["kind"], "reduce_scatter");
  EXPECT_EQ(json["traffic"][1]["bytes"], 3000);
  EXPECT_EQ(json["time"]["step"], 0.1);
  EXPECT_EQ(json["time"]["parts"]["backward"], 0.04);
  std::filesystem::remove_all(folder);
  EXPECT_FALSE(write_plan_json(example_plan(2), folder).ok());
}

// The planner's own figures, with a published device: what must hold whatever they are.
TEST(RunPlan, PartsAddUpToTheStep) {
  HardwareSpec hardware = read_hardware(find_named_hardware("a100-sxm-80gb").value()).value();
  for (const int zero : {0, 1, 2, 3}) {
    const ModelSpec model = parse_model_config(kModel, "config.json").value();
    RunConfig config = example_config(2);
    config.parallel.zero = zero;
    const auto plan = make_run_plan(model, resolve(config, model).value(), 1, &hardware);
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    double sum = 0;
    for (const double part : plan->time->parts.seconds) {
      EXPECT_GE(part, -1e-12);
      sum += part;
    }
    EXPECT_NEAR(sum, plan->time->step_s, 1e-9);
    EXPECT_GT(plan->time->step_s, 0);
    EXPECT_GT(plan->ledger.peak_total, 0);
  }
}

}  // namespace
}  // namespace fivefold
