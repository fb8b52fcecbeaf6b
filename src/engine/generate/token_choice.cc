#include "engine/generate/token_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "base/philox.h"

namespace fivefold {

int32_t choose_token(std::span<const float> logits, const TokenSampling& sampling, uint64_t index) {
  FIVEFOLD_CHECK(!logits.empty());
  size_t largest = 0;
  bool nan = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    nan = nan || std::isnan(logits[i]);
    if (logits[i] > logits[largest]) largest = i;
  }
  if (nan || !std::isfinite(logits[largest]))
    throw std::runtime_error(
        "the model's output is not finite: its weights are damaged, or too large for the precision");
  if (sampling.temperature <= 0) return static_cast<int32_t>(largest);

  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  size_t kept = order.size();
  if (sampling.top_k > 0) kept = std::min(kept, static_cast<size_t>(sampling.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), before);

  std::vector<double> weights(kept);
  for (size_t i = 0; i < kept; ++i)
    weights[i] =
        std::exp((static_cast<double>(logits[static_cast<size_t>(order[i])]) - logits[largest]) / sampling.temperature);
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (sampling.top_p < 1) {
    double sum = 0;
    for (size_t i = 0; i < kept; ++i) {
      sum += weights[i];
      if (sum < sampling.top_p * total) continue;
      kept = i + 1;
      total = sum;
      break;
    }
  }
  const double drawn = static_cast<double>(random_uniform(sampling.seed, random_stream("generate"), index)) * total;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += weights[i];
    if (drawn < sum) return order[i];
  }
  return order[kept - 1];
}

}  // namespace fivefold
