// Recorded durations of a pipeline of two stages, replayed. A stage's layers take 1 s forward and 2 s backward
// together, everything else nothing: 1F1B of m microbatches takes 3 (m + 1) s, the bubble is 1 / (m + 1)
// (docs/schedules.md).
#include "reconcile/recorded_step.h"

#include "reconcile/reconcile_testing.h"

namespace fivefold {
namespace {

using namespace reconcile_testing;

constexpr int kMicrobatches = 3;

RunPlan pipeline_plan() {
  std::string model = kModel;
  const std::string layers = "\"num_hidden_layers\": 1";
  model.replace(model.find(layers), layers.size(), "\"num_hidden_layers\": 4");
  const ModelSpec spec = parse_model_config(model, "config.json").value();
  RunConfig config = example_config(1);
  config.parallel.pp = 2;
  config.parallel.schedule = ScheduleKind::k1F1B;
  config.batch.global = kMicrobatches * config.batch.micro;
  return make_run_plan(spec, resolve(config, spec).value(), 1, nullptr).value();
}

bool is_layer(const RunPlan& plan, const Instruction& instruction) {
  return instruction.unit > 0 && instruction.unit < plan.inventory.head();
}

// Wall times are ten times as long: the rank had a tenth of a core.
StepRecord step_record(const RunPlan& plan, int rank, int64_t number) {
  const StageUnits units = rank_stages(plan.model, plan.config, rank).chunks[0];
  int layers = 0;
  for (int unit = units.first; unit < units.last; ++unit) layers += unit > 0 && unit < plan.inventory.head();
  StepRecord step;
  step.step = number;
  double now = 0;
  for (const Instruction& instruction : plan.program_of(rank).instructions) {
    const double whole = instruction.op == Opcode::kForward ? 1 : instruction.op == Opcode::kBackward ? 2 : 0;
    const double seconds = is_layer(plan, instruction) ? whole / layers : 0;
    step.times.push_back({now, now + 10 * seconds, seconds});
    now += 10 * seconds;
  }
  step.seconds = now;
  return step;
}

PlannedRun pipeline_run() {
  PlannedRun run{pipeline_plan(), {}};
  for (int rank = 0; rank < 2; ++rank) {
    RecordedSession session;
    for (const Instruction& instruction : run.plan.program_of(rank).instructions)
      session.program.push_back(as_recorded(instruction, run.plan.inventory));
    for (int64_t number = 1; number <= 5; ++number) session.steps.push_back(step_record(run.plan, rank, number));
    run.record.ranks.push_back({rank, {std::move(session)}, false});
  }
  return run;
}

TEST(RecordedStep, HasTheBubbleOfTheScheduleWhateverTheMachineDid) {
  PlannedRun run = pipeline_run();
  // A slow microbatch, and first steps that do not count.
  run.record.ranks[1].sessions[0].steps[3].times[4].cpu_s = 50;
  for (RecordedTime& time : run.record.ranks[0].sessions[0].steps[0].times) time.cpu_s = 7;
  const auto replay = replay_recorded(run);
  ASSERT_TRUE(replay);
  EXPECT_NEAR(replay->makespan_s, 3 * (kMicrobatches + 1), 1e-9);
  EXPECT_NEAR(replay->bubble(), 1.0 / (kMicrobatches + 1), 1e-9);
}

// The second stage takes twice as long: 6 m s on it, with 1 s before its first forward and 2 s after its last backward.
TEST(RecordedStep, TakesEachStagesOwnTimes) {
  PlannedRun run = pipeline_run();
  for (StepRecord& step : steps_of(run, 1))
    for (RecordedTime& time : step.times) time.cpu_s *= 2;
  const auto replay = replay_recorded(run);
  ASSERT_TRUE(replay);
  EXPECT_NEAR(replay->makespan_s, 6 * kMicrobatches + 3, 1e-9);
  EXPECT_NEAR(replay->bubble(0), 1 - 9.0 / 21, 1e-9);
  EXPECT_NEAR(replay->bubble(1), 3.0 / 21, 1e-9);
}

// The norm of a rank, 0.5 s, and its optimizer, 0.25 s for each unit that it updates, follow the pipeline.
TEST(RecordedStep, CountsNormAndOptimizer) {
  PlannedRun run = pipeline_run();
  std::vector<double> end(2, 3 * (kMicrobatches + 1) + 0.5);
  for (int rank : {0, 1})
    for (size_t i = 0; i < run.plan.program_of(rank).instructions.size(); ++i) {
      const Opcode op = run.plan.program_of(rank).instructions[i].op;
      if (op == Opcode::kOptimizerStep) end[static_cast<size_t>(rank)] += 0.25;
      for (StepRecord& step : steps_of(run, rank))
        if (op == Opcode::kGradNorm || op == Opcode::kOptimizerStep)
          step.times[i].cpu_s = op == Opcode::kGradNorm ? 0.5 : 0.25;
    }
  EXPECT_NEAR(replay_recorded(run)->makespan_s, std::max(end[0], end[1]), 1e-9);
}

TEST(RecordedStep, NeedsTimesOfThePlannedProgram) {
  PlannedRun run = pipeline_run();
  run.record.ranks[1].sessions[0].program.pop_back();
  EXPECT_FALSE(replay_recorded(run));
  run = pipeline_run();
  for (StepRecord& step : steps_of(run, 1)) step.times.clear();
  EXPECT_FALSE(replay_recorded(run));
}

// Beside the plan, which has none without hardware, and the waiting that the record shows. Rank 0 spends 0.6 of 4 s of
// a step beside its computing in the norm, 0.1 of them on a core.
TEST(RecordedStep, IsShownWithTheMeasuredWaiting) {
  PlannedRun run = pipeline_run();
  const std::vector<Instruction>& program = run.plan.program.instructions;
  for (StepRecord& step : steps_of(run, 0))
    for (size_t i = 0; i < program.size(); ++i)
      if (program[i].op == Opcode::kGradNorm) step.times[i] = {90, 90.6, 0.1};
  for (int rank : {0, 1})
    for (StepRecord& step : steps_of(run, rank)) step.seconds = 100;
  const auto result = reconcile(run);
  ASSERT_TRUE(result.ok()) << result.error().message();
  const ReconcileRow bubble = row_of(*result, "pipeline.bubble_replayed");
  EXPECT_FALSE(bubble.predicted);
  // Rank 1 waits 0.1 s for the norm.
  EXPECT_NEAR(bubble.measured, 1 - (9 + 0.1 + 9) / 2 / 12.1, 1e-9);
  EXPECT_NEAR(row_of(*result, "pipeline.step_replayed").measured, 12.1, 1e-9);
  EXPECT_NEAR(row_of(*result, "pipeline.bubble_replayed", 1).measured, 3.1 / 12.1, 1e-9);
  const ReconcileRow waiting = row_of(*result, "pipeline.waiting", 0);
  EXPECT_NEAR(waiting.measured, 0.5 / 100, 1e-9);
  EXPECT_EQ(waiting.cause,
            "computing threads had a core for 10.0 % of their time: a rank without a core keeps those behind it "
            "waiting, which is no bubble");
}

}  // namespace
}  // namespace fivefold
