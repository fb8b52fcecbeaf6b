#include "spec/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace fivefold {
namespace {

// Falls from 1 to 0 as progress goes from 0 to 1.
double decay(WsdDecay kind, double progress) {
  switch (kind) {
    case WsdDecay::kLinear:
      return 1 - progress;
    case WsdDecay::kCosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case WsdDecay::kOneMinusSqrt:
      return 1 - std::sqrt(progress);
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace

double learning_rate(const LrConfig& config, double peak, int64_t update, int64_t total) {
  FIVEFOLD_CHECK(update >= 0 && (total > 0 || config.schedule == LrScheduleKind::kConstant));
  const auto above_floor = [&](double factor) { return peak * (config.min_ratio + (1 - config.min_ratio) * factor); };
  const bool wsd = config.schedule == LrScheduleKind::kWsd;
  if (update < config.warmup_steps) {
    const double ramp = static_cast<double>(update) / static_cast<double>(config.warmup_steps);
    return wsd ? above_floor(ramp) : peak * ramp;
  }
  const int64_t decay_begin = wsd ? std::max(config.warmup_steps, total - config.decay_steps) : config.warmup_steps;
  const auto span = static_cast<double>(std::max<int64_t>(1, total - decay_begin));
  const double progress = std::clamp(static_cast<double>(update - decay_begin) / span, 0.0, 1.0);
  switch (config.schedule) {
    case LrScheduleKind::kConstant:
      return peak;
    case LrScheduleKind::kCosine:
      return above_floor(decay(WsdDecay::kCosine, progress));
    case LrScheduleKind::kLinear:
      return above_floor(decay(WsdDecay::kLinear, progress));
    case LrScheduleKind::kWsd:
      return above_floor(decay(config.decay, progress));
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace fivefold
