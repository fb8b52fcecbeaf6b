#include "reconcile/reconcile_testing.h"

namespace fivefold {
namespace {

using namespace reconcile_testing;

constexpr RecordedCall call(Purpose purpose, double begin_s, double end_s, double exposed_s) {
  return {CollectiveKind::kAllGather, GroupKind::kShard, purpose, 1000, begin_s, end_s, exposed_s};
}

std::vector<ReconcileRow> rows_of(const PlannedRun& run) {
  auto result = reconcile(run, nullptr);
  EXPECT_TRUE(result.ok());
  std::vector<ReconcileRow> rows;
  for (const ReconcileRow& row : result->rows)
    if (row.quantity.starts_with("time.communication") || row.quantity.starts_with("time.hidden")) rows.push_back(row);
  return rows;
}

// Two gathers of 10 and 6 ms, of which 2 and 6 ms are waited for, on rank 1; rank 0's are shorter. Planned: 20 ms, 15
// of them hidden. The first two steps do not count, control and scalars have no rows.
TEST(ReconcileCommunication, HoldsHiddenSecondsAgainstThePlan) {
  PlannedRun run = example_run();
  run.plan.time->communication = {
      {{GroupKind::kShard, Purpose::kParameters, 0.020, 0.005}, {GroupKind::kWorld, Purpose::kGradNorm, 0.001, 0.001}}};
  for (StepRecord& step : steps_of(run, 0)) step.calls = {call(Purpose::kParameters, 0, 0.005, 0)};
  for (StepRecord& step : steps_of(run, 1))
    step.calls = {call(Purpose::kParameters, -0.004, 0.006, 0.002), call(Purpose::kParameters, 0.01, 0.016, 0.006),
                  call(Purpose::kGradNorm, 0.05, 0.06, 0.01)};
  steps_of(run, 1)[0].calls = {call(Purpose::kParameters, 0, 1, 0)};
  const std::vector<ReconcileRow> rows = rows_of(run);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].quantity, "time.communication.shard.parameters");
  EXPECT_EQ(rows[0].rank, 1);
  EXPECT_NEAR(rows[0].measured, 0.016, 1e-12);
  EXPECT_EQ(rows[0].predicted, 0.020);
  EXPECT_EQ(rows[1].quantity, "time.hidden.shard.parameters");
  EXPECT_NEAR(rows[1].measured, 0.008, 1e-12);
  EXPECT_NEAR(*rows[1].predicted, 0.015, 1e-12);
  EXPECT_EQ(rows[1].cause, "of its communication 50.0 % hidden, 75.0 % planned");
  EXPECT_TRUE(rows[0].pass() && rows[1].pass());
}

// Records without calls have no such rows; what the plan does not know has no prediction.
TEST(ReconcileCommunication, NeedsCalls) {
  PlannedRun run = example_run();
  run.plan.time->communication = {
      std::vector<CommunicationTime>{{GroupKind::kShard, Purpose::kParameters, 0.020, 0.005}}};
  EXPECT_TRUE(rows_of(run).empty());
  for (StepRecord& step : steps_of(run, 0)) step.calls = {call(Purpose::kGradients, 0, 0.005, 0)};
  const std::vector<ReconcileRow> rows = rows_of(run);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].quantity, "time.hidden.shard.gradients");
  EXPECT_EQ(rows[1].predicted, std::nullopt);
  EXPECT_NEAR(rows[1].measured, 0.005, 1e-12);
}

}  // namespace
}  // namespace fivefold
