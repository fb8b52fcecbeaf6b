// LossScaler: the dynamic loss scale of fp16 training, in the arithmetic of torch.amp.GradScaler: fp32, growth 2,
// backoff 1/2. The gradient of the loss is multiplied by the scale, so that small gradients do not round to zero in
// fp16; an overflow anywhere halves it, a number of steps without one doubles it. Every rank holds one and updates it
// with what all ranks agree on, so they stay equal. A value; no thread-safety.
#pragma once

#include <cstdint>

namespace fivefold {

class LossScaler {
 public:
  // `growth_every`: steps in a row without overflow after which the scale doubles. REQUIRES: it is positive.
  LossScaler(float scale, int64_t growth_every) : scale_(scale), growth_every_(growth_every) {}

  // After a step with the scale; `overflow`: a gradient of it, on any rank, was infinite or NaN.
  void update(bool overflow);

  float scale() const { return scale_; }
  // Steps in a row without overflow since the scale changed last.
  int64_t growth_tracker() const { return growth_tracker_; }
  void restore(float scale, int64_t growth_tracker) { scale_ = scale, growth_tracker_ = growth_tracker; }

 private:
  float scale_;
  int64_t growth_every_;
  int64_t growth_tracker_ = 0;
};

// What a training run makes of the steps that overflow. A value; no thread-safety.
class OverflowWatch {
 public:
  enum class Verdict : uint8_t {
    kSkip,  // go on with the smaller scale
    kWarn,  // go on, and tell: the scale has fallen below 1, so gradients overflow as they are
    kEnd,   // no scale helps
  };

  // After a step that overflowed with the scale `used`; `next`: the scale from here on. A loss that is not finite does
  // not depend on the scale: three such steps in a row end the run. So does a scale below 2^-24, the smallest number of
  // fp16, with which even a gradient of 1 is lost.
  Verdict after_overflow(bool finite_loss, float used, float next);
  void after_update() { lost_losses_ = 0; }

 private:
  int lost_losses_ = 0;  // steps in a row whose loss was not finite
};

}  // namespace fivefold
