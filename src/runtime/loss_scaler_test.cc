#include "runtime/loss_scaler.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace fivefold {
namespace {

// What torch.amp.GradScaler did over scripted steps, among the reference cases.
nlohmann::json traces() {
  const char* shared = std::getenv("FIVEFOLD_SHARED");
  const std::filesystem::path root =
      shared != nullptr ? std::filesystem::path(shared) : std::filesystem::path(FIVEFOLD_SOURCE_DIR) / ".." / "shared";
  std::ifstream file(root / "oracles" / "14_fp16_loss_scaler" / "trace.json");
  return file ? nlohmann::json::parse(file) : nlohmann::json();
}

TEST(LossScaler, FollowsTheTracesOfTorchsGradScaler) {
  const nlohmann::json json = traces();
  if (json.is_null()) GTEST_SKIP() << "no reference cases";
  ASSERT_FALSE(json["runs"].empty());
  for (const auto& [name, run] : json["runs"].items()) {
    SCOPED_TRACE(name);
    ASSERT_EQ(run["growth_factor"], 2.0);
    ASSERT_EQ(run["backoff_factor"], 0.5);
    LossScaler scaler(run["init_scale"].get<float>(), run["growth_interval"].get<int64_t>());
    for (const nlohmann::json& step : run["steps"]) {
      SCOPED_TRACE(step["step"].get<int>());
      EXPECT_EQ(scaler.scale(), step["scale_used"].get<float>());
      scaler.update(step["skipped"].get<bool>());
      EXPECT_EQ(scaler.scale(), step["scale_after"].get<float>());
      EXPECT_EQ(scaler.growth_tracker(), step["growth_tracker_after"].get<int64_t>());
    }
  }
}

TEST(LossScaler, HalvesAfterAnOverflowAndDoublesAfterStepsInARowWithoutOne) {
  LossScaler scaler(8, 2);
  scaler.update(false);
  scaler.update(true);  // the step before no longer counts
  EXPECT_EQ(scaler.scale(), 4);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_EQ(scaler.growth_tracker(), 1);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(scaler.growth_tracker(), 0);
}

TEST(LossScaler, NeverBecomesInfiniteAndEndsAtZero) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  LossScaler scaler(kLargest, 1);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), kLargest);
  EXPECT_EQ(scaler.growth_tracker(), 0);
  for (int step = 0; step < 300; ++step) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 0);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0);
}

TEST(LossScaler, GoesOnWhereItWasRestored) {
  LossScaler scaler(65536, 4);
  scaler.restore(256, 3);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 512);
  EXPECT_EQ(scaler.growth_tracker(), 0);
}

using Verdict = OverflowWatch::Verdict;

TEST(OverflowWatch, EndsTheRunAtTheThirdLostLossInARow) {
  OverflowWatch watch;
  EXPECT_EQ(watch.after_overflow(false, 64, 32), Verdict::kSkip);
  EXPECT_EQ(watch.after_overflow(false, 32, 16), Verdict::kSkip);
  watch.after_update();
  EXPECT_EQ(watch.after_overflow(false, 64, 32), Verdict::kSkip);
  EXPECT_EQ(watch.after_overflow(true, 32, 16), Verdict::kSkip);
  EXPECT_EQ(watch.after_overflow(false, 16, 8), Verdict::kSkip);
  EXPECT_EQ(watch.after_overflow(false, 8, 4), Verdict::kSkip);
  EXPECT_EQ(watch.after_overflow(false, 4, 2), Verdict::kEnd);
}

TEST(OverflowWatch, WarnsOnceBelowOneAndEndsTheRunWhereNothingIsLeft) {
  OverflowWatch watch;
  int warnings = 0, steps = 0;
  float scale = 4;
  for (;; scale /= 2, ++steps) {
    const Verdict verdict = watch.after_overflow(true, scale, scale / 2);
    warnings += verdict == Verdict::kWarn;
    if (verdict == Verdict::kEnd) break;
  }
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(scale / 2, 0x1p-25f);
  EXPECT_EQ(steps, 26);  // 4 = 2^2 down to 2^-24
}

}  // namespace
}  // namespace fivefold
