#include "prediction/measured_step.h"

#include <algorithm>
#include <cmath>

namespace fivefold::bench {
namespace {

constexpr double kDrift = 0.05, kLeastCpuShare = 0.9;
constexpr int kRounds = 3;

}  // namespace

MeasuredStep measure_step(EngineApi& engine, const ProbeRequest& request) {
  MeasuredStep best;
  for (int round = 0; round < kRounds && best.disturbed; ++round) {
    const Measurements before = engine.measure({});
    const ProbeResult result = engine.probe(request).value();
    const Measurements after = engine.measure({});
    // The first step is without update, the last one too.
    const auto begin = result.step_seconds.begin() + 1;
    const auto fastest = std::min_element(begin, begin + request.updates);
    if (best.seconds == 0 || *fastest < best.seconds) {
      best.seconds = *fastest;
      if (request.want_calls) best.calls = result.calls[0][static_cast<size_t>(fastest - begin)];
    }
    best.disturbed = std::abs(after.reference_after_s / before.reference_before_s - 1) > kDrift ||
                     std::min(before.cpu_share, after.cpu_share) < kLeastCpuShare;
  }
  return best;
}

}  // namespace fivefold::bench
