// Training in fp16 with a dynamic loss scale: it learns as fp32 does, and what no scale can mend ends the run with the
// place where it began.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "record/record_reader.h"
#include "support/training_runs.h"

namespace fivefold::testing {
namespace {

using HalfTraining = TrainingRuns;

std::vector<StepRecord> steps_of(const std::filesystem::path& run) {
  return read_run_record(run).value().ranks[0].sessions.back().steps;
}

double mean_of_last(const std::vector<StepRecord>& steps, size_t count) {
  double sum = 0;
  for (size_t i = steps.size() - count; i < steps.size(); ++i) sum += steps[i].loss;
  return sum / static_cast<double>(count);
}

TEST_F(HalfTraining, LearnsIn300StepsAsFp32Does) {
  const auto run = [&](const std::string& compute) {
    train(request(compute, {"run.steps=300", "parallel.dp=2", "parallel.zero=2", "batch.micro=2", "optimizer.lr=3e-3",
                            "precision.compute=" + compute, "precision.loss_scale_growth_every=20"}));
    return steps_of(folder_ / compute);
  };
  const std::vector<StepRecord> fp32 = run("fp32"), fp16 = run("fp16");
  ASSERT_EQ(fp16.size(), 300u);
  int skipped = 0;
  double largest = 0;
  for (const StepRecord& step : fp16) {
    skipped += !step.updated;
    largest = std::max(largest, step.loss_scale);
    EXPECT_TRUE(std::isfinite(step.loss));
  }
  const double right = mean_of_last(fp32, 50), found = mean_of_last(fp16, 50);
  std::printf("mean loss of the last 50 steps: fp32 %.4f, fp16 %.4f; %d steps skipped, largest scale %g\n", right,
              found, skipped, largest);
  EXPECT_LT(right, 0.5 * fp32[0].loss);
  EXPECT_NEAR(found, right, 0.02);
  EXPECT_GT(largest, 65536);  // it grew until gradients overflowed
  EXPECT_GT(skipped, 0);
}

// Weights that a step made too large: every loss after it is NaN, which no loss scale changes.
TEST_F(HalfTraining, ALossThatStaysNaNEndsTheRunWithLayerAndRank) {
  const TrainRequest bad =
      request("bad", {"run.steps=20", "parallel.dp=2", "batch.micro=4", "optimizer.kind=sgd", "optimizer.lr=1e6",
                      "optimizer.clip=0", "lr.warmup_steps=0", "precision.compute=fp16"});
  std::string text;
  try {
    (void)load_engine().value()->train(bad);
  } catch (const std::exception& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("first in the forward of embedding, microbatch 0"), std::string::npos) << text;
  EXPECT_NE(text.find("on ranks 0, 1"), std::string::npos) << text;
  const RecordedSession session = read_run_record(folder_ / "bad").value().ranks[1].sessions.back();
  ASSERT_GE(session.events.size(), 3u);
  EXPECT_EQ(session.events[0].kind, EventKind::kSkippedStep);
  EXPECT_EQ(session.events[1].kind, EventKind::kSkippedStep);
  EXPECT_EQ(session.events[2].kind, EventKind::kNonFinite);
}

}  // namespace
}  // namespace fivefold::testing
