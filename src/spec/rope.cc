#include "spec/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/integer.h"

namespace fivefold {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

// theta^(-2i / d)
std::vector<double> plain_frequencies(double theta, int64_t rotary_dim) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < rotary_dim; i += 2)
    frequencies.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(rotary_dim)));
  return frequencies;
}

// NTK-aware: beyond the trained length theta grows so that the slowest pair is stretched by the excess and the fastest
// not at all.
double dynamic_theta(const RopeSpec& rope, int64_t sequence) {
  const auto trained = static_cast<double>(rope.original_max_positions);
  const double length = std::max(static_cast<double>(sequence), trained);
  const double excess = rope.factor * length / trained - (rope.factor - 1.0);
  const auto d = static_cast<double>(rope.rotary_dim);
  return rope.rotary_dim > 2 ? rope.theta * std::pow(excess, d / (d - 2.0)) : rope.theta;
}

// Llama 3.1: pairs that turn often within the trained length stay, those that turn less than low_freq_factor times are
// slowed by `factor`, in between a linear blend in the number of turns.
void scale_llama3(const RopeSpec& rope, std::vector<double>& frequencies) {
  for (double& frequency : frequencies) {
    const double turns = static_cast<double>(rope.original_max_positions) * frequency / kTwoPi;
    const double kept =
        std::clamp((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
    frequency = (1.0 - kept) * frequency / rope.factor + kept * frequency;
  }
}

// YaRN: the blend runs linearly over the pair's index, between the pairs that turn beta_fast and beta_slow times within
// the trained length.
void scale_yarn(const RopeSpec& rope, std::vector<double>& frequencies) {
  const auto d = static_cast<double>(rope.rotary_dim);
  const auto pair_that_turns = [&](double times) {
    const double wavelength = static_cast<double>(rope.original_max_positions) / (times * kTwoPi);
    return d * std::log(wavelength) / (2.0 * std::log(rope.theta));
  };
  double first = pair_that_turns(rope.beta_fast), last = pair_that_turns(rope.beta_slow);
  if (rope.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, d - 1.0);
  if (first == last) last += 0.001;  // a step instead of a ramp, as transformers does
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double slowed = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    frequencies[i] *= slowed / rope.factor + (1.0 - slowed);
  }
}

double yarn_mscale(double factor, double weight) { return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0; }

double yarn_attention_factor(const RopeSpec& rope) {
  if (rope.attention_factor > 0.0) return rope.attention_factor;
  if (rope.mscale > 0.0 && rope.mscale_all_dim > 0.0)
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  return yarn_mscale(rope.factor, 1.0);
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeSpec& rope, int64_t sequence) {
  FIVEFOLD_CHECK(rope.rotary_dim > 0 && rope.rotary_dim % 2 == 0, "rotary_dim must be even and positive");
  const bool dynamic = rope.scaling == RopeScaling::kDynamic;
  std::vector<double> frequencies =
      plain_frequencies(dynamic ? dynamic_theta(rope, sequence) : rope.theta, rope.rotary_dim);
  if (rope.scaling == RopeScaling::kLinear)
    for (double& frequency : frequencies) frequency /= rope.factor;
  if (rope.scaling == RopeScaling::kLlama3) scale_llama3(rope, frequencies);
  if (rope.scaling == RopeScaling::kYarn) scale_yarn(rope, frequencies);
  RopeFrequencies result;
  result.inverse.assign(frequencies.begin(), frequencies.end());
  if (rope.scaling == RopeScaling::kYarn) result.attention_factor = yarn_attention_factor(rope);
  return result;
}

RopeTable rope_table(const RopeSpec& rope, int64_t sequence, std::span<const int64_t> positions) {
  const RopeFrequencies frequencies = rope_frequencies(rope, sequence);
  RopeTable table;
  table.positions = static_cast<int64_t>(positions.size());
  table.half = div_exact(rope.rotary_dim, 2);
  table.cos.reserve(positions.size() * frequencies.inverse.size());
  table.sin.reserve(positions.size() * frequencies.inverse.size());
  for (const int64_t position : positions) {
    for (const float inverse : frequencies.inverse) {
      const double angle = inverse * static_cast<float>(position);  // rounded to fp32 as in training
      table.cos.push_back(static_cast<float>(std::cos(angle) * frequencies.attention_factor));
      table.sin.push_back(static_cast<float>(std::sin(angle) * frequencies.attention_factor));
    }
  }
  return table;
}

}  // namespace fivefold
