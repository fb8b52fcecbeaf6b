// Internal to src/kernels: elementary functions that the compiler can vectorise, because they are branch-free
// arithmetic in fp32. The polynomials are least-maximum fits of this project (weighted least squares, reweighted until
// the error is level); tests sweep them against <cmath> in fp64.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/clones.h"

namespace fivefold::kernels {

// exp(x) within 2 ulp, subnormal results within 1 of their last place; inf above 88.73, 0 below -104, NaN for NaN.
//
// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2) / 2. The addend 1.5 2^23 rounds to an integer by pushing the
// fraction out of the significand. 2^n is applied as two factors, so that both overflow and subnormals come out right.
FIVEFOLD_INLINE float exp_f32(float x) {
  constexpr float kRound = 0x1.8p23f;
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = x * 0x1.715476p+0f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // ln 2 in two parts; n times the first is exact
  float q = 0x1.6db47ap-10f;  // (exp(r) - 1 - r) / r^2, relative error of the whole 3.2e-9
  q = q * r + 0x1.123b92p-7f;
  q = q * r + 0x1.55545ep-5f;
  q = q * r + 0x1.55548ep-3f;
  q = q * r + 0.5f;
  const float exp_r = 1.0f + (r + r * r * q);
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = exponent >> 1;
  const float low = std::bit_cast<float>((half + 127) << 23);
  const float high = std::bit_cast<float>((exponent - half + 127) << 23);
  return exp_r * low * high;
}

// 1 / (1 + exp(-x)) within 4 ulp above exp(-87), 0 below -89, NaN for NaN. As exp_f32, but the sum takes the place of
// the ends of the range: below 2^-126 exp adds nothing to 1, and from 2^127.5 on it may be infinite.
FIVEFOLD_INLINE float sigmoid_f32(float x) {
  constexpr float kRound = 0x1.8p23f;
  x = x < -89.0f ? -89.0f : x;
  x = x > 87.0f ? 87.0f : x;
  const float shifted = x * -0x1.715476p+0f + kRound;
  const float n = shifted - kRound;
  const float r = (-x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  float q = 0x1.6db47ap-10f;
  q = q * r + 0x1.123b92p-7f;
  q = q * r + 0x1.55545ep-5f;
  q = q * r + 0x1.55548ep-3f;
  q = q * r + 0.5f;
  const float exp_r = 1.0f + (r + r * r * q);
  // n is in [-126, 128]: the exponent field of 2^n is that of a normal number, or of infinity.
  const float scale = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u);
  return 1.0f / (1.0f + exp_r * scale);
}

struct NormalCdf {
  float cdf;      // P(N(0, 1) <= x), absolute error below 3e-7
  float density;  // exp(-x^2 / 2) / sqrt(2 pi)
};
// With t = |x| / sqrt 2: P(N <= -|x|) = erfc(t) / 2 = exp(-t^2) s poly(s) / 2, s = 1 / (1 + 0.35 t); the fit of
// exp(t^2) erfc(t) holds to 9e-9 relative for t in [0, 12].
FIVEFOLD_INLINE NormalCdf normal_cdf_f32(float x) {
  const float t = (x < 0 ? -x : x) * 0x1.6a09e6p-1f;
  const float s = 1.0f / (1.0f + 0.35f * t);
  const float gauss = exp_f32(-0.5f * x * x);
  float poly = 0.040609818f;
  poly = poly * s - 0.17117782f;
  poly = poly * s + 0.21093038f;
  poly = poly * s - 0.0679933f;
  poly = poly * s + 0.12144367f;
  poly = poly * s + 0.12701425f;
  poly = poly * s + 0.1579762f;
  poly = poly * s + 0.18639678f;
  poly = poly * s + 0.1973263f;
  poly = poly * s + 0.19747372f;
  const float tail = 0.5f * gauss * (s * poly);
  return {x < 0 ? tail : 1.0f - tail, gauss * 0x1.988454p-2f};
}

}  // namespace fivefold::kernels
