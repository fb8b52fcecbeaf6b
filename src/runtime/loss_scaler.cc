#include "runtime/loss_scaler.h"

#include <cmath>

namespace fivefold {

// There is no lower limit: after enough overflows the scale is 0 and stays there; who uses it stops before. A scale
// that would become infinite stays, and the count of steps starts again all the same.
void LossScaler::update(bool overflow) {
  if (overflow) {
    scale_ *= 0.5f;
    growth_tracker_ = 0;
    return;
  }
  if (++growth_tracker_ < growth_every_) return;
  if (std::isfinite(scale_ * 2.0f)) scale_ *= 2.0f;
  growth_tracker_ = 0;
}

OverflowWatch::Verdict OverflowWatch::after_overflow(bool finite_loss, float used, float next) {
  constexpr int kMostLostLosses = 3;
  constexpr float kLeastScale = 0x1p-24f;
  lost_losses_ = finite_loss ? 0 : lost_losses_ + 1;
  if (lost_losses_ >= kMostLostLosses || next < kLeastScale) return Verdict::kEnd;
  return used >= 1 && next < 1 ? Verdict::kWarn : Verdict::kSkip;
}

}  // namespace fivefold
