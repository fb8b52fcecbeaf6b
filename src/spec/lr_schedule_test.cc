#include "spec/lr_schedule.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace fivefold {
namespace {

// The tables of transformers' schedules among the reference cases.
nlohmann::json tables() {
  const char* shared = std::getenv("FIVEFOLD_SHARED");
  const std::filesystem::path root =
      shared != nullptr ? std::filesystem::path(shared) : std::filesystem::path(FIVEFOLD_SOURCE_DIR) / ".." / "shared";
  std::ifstream file(root / "oracles" / "15_lr_schedules" / "tables.json");
  return file ? nlohmann::json::parse(file) : nlohmann::json();
}

TEST(LearningRate, EqualsTheTablesOfTransformers) {
  const nlohmann::json json = tables();
  if (json.is_null()) GTEST_SKIP() << "no reference cases";
  const struct {
    const char* table;
    LrConfig config;
  } cases[] = {
      {"cosine_with_warmup", {.schedule = LrScheduleKind::kCosine, .warmup_steps = 10, .min_ratio = 0}},
      {"cosine_no_warmup", {.schedule = LrScheduleKind::kCosine, .warmup_steps = 0, .min_ratio = 0}},
      {"cosine_with_min_lr", {.schedule = LrScheduleKind::kCosine, .warmup_steps = 10, .min_ratio = 0.1}},
      {"linear_with_warmup", {.schedule = LrScheduleKind::kLinear, .warmup_steps = 10, .min_ratio = 0}},
      {"constant_with_warmup", {.schedule = LrScheduleKind::kConstant, .warmup_steps = 10, .min_ratio = 0}},
      {"wsd_cosine_decay",
       {.schedule = LrScheduleKind::kWsd,
        .warmup_steps = 10,
        .min_ratio = 0,
        .decay_steps = 20,
        .decay = WsdDecay::kCosine}},
      {"wsd_linear_decay",
       {.schedule = LrScheduleKind::kWsd,
        .warmup_steps = 10,
        .min_ratio = 0.1,
        .decay_steps = 20,
        .decay = WsdDecay::kLinear}},
  };
  const double peak = json["peak_lr"].get<double>();
  for (const auto& c : cases) {
    const nlohmann::json& table = json["schedules"][c.table];
    for (int64_t update = 0; update < 100; ++update)
      EXPECT_NEAR(learning_rate(c.config, peak, update, 100),
                  table["lr_of_update"][static_cast<size_t>(update)].get<double>(), 1e-12)
          << c.table << " " << update;
  }
  // 10 + 60 + 20 steps: the run ends where the decay does.
  const LrConfig sqrt_config{.schedule = LrScheduleKind::kWsd,
                             .warmup_steps = 10,
                             .min_ratio = 0,
                             .decay_steps = 20,
                             .decay = WsdDecay::kOneMinusSqrt};
  for (int64_t update = 0; update < 90; ++update)
    EXPECT_NEAR(learning_rate(sqrt_config, peak, update, 90),
                json["schedules"]["wsd_1-sqrt_decay"]["lr_of_update"][static_cast<size_t>(update)].get<double>(), 1e-12)
        << update;
}

}  // namespace
}  // namespace fivefold
