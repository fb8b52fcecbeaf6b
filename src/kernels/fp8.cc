#include "kernels/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/clones.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;

template <Fp8Format kFormat>
struct Layout;
template <>
struct Layout<Fp8Format::kE4M3> {
  static constexpr int kDigits = 3, kBias = 7;
  static constexpr uint32_t kNan = 0x7f, kLargest = 0x7e;
};
template <>
struct Layout<Fp8Format::kE5M2> {
  static constexpr int kDigits = 2, kBias = 15;
  static constexpr uint32_t kNan = 0x7f, kLargest = 0x7b;
};

// The magnitude's fp32 bits, moved to the format's exponent and rounded at its last digit. Below the smallest normal
// value the digits have a fixed place: adding a power of two whose last fp32 digit is that place rounds there.
template <Fp8Format kFormat, Fp8Overflow kOverflow>
FIVEFOLD_INLINE uint8_t encode(float value) {
  using L = Layout<kFormat>;
  constexpr int kDropped = 23 - L::kDigits;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - L::kBias) << 23;  // 2^(1 - bias)
  // 2^(1 - bias - digits) is the last place; 2^23 times that is the addend.
  constexpr uint32_t kAddend = static_cast<uint32_t>(127 + 1 - L::kBias - L::kDigits + 23) << 23;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & kMagnitude;
  const uint32_t small =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kAddend)) - kAddend;
  const uint32_t rebased = magnitude - (static_cast<uint32_t>(127 - L::kBias) << 23);
  const uint32_t normal = (rebased + ((1u << (kDropped - 1)) - 1) + ((magnitude >> kDropped) & 1u)) >> kDropped;
  uint32_t code = magnitude < kSmallestNormal ? small : normal;
  constexpr bool kHasInfinity = kFormat == Fp8Format::kE5M2 && kOverflow == Fp8Overflow::kInfinity;
  constexpr uint32_t kBeyond = kHasInfinity ? L::kLargest + 1 : L::kLargest;
  // Magnitudes from 2^100 on would not fit the code's bits before the comparison.
  code = code > L::kLargest || magnitude >= (227u << 23) ? kBeyond : code;
  code = magnitude > kInfinity ? L::kNan : code;
  return static_cast<uint8_t>(sign | code);
}

// The digits of a code are the upper digits of an fp32 number whose exponent is off by the difference of the biases,
// subnormal codes being subnormal fp32 numbers; a product with a power of two puts that right.
template <Fp8Format kFormat>
FIVEFOLD_INLINE float decode(uint8_t code) {
  using L = Layout<kFormat>;
  constexpr float kRebase = std::bit_cast<float>(static_cast<uint32_t>(127 + 127 - L::kBias) << 23);
  const uint32_t wide = code;
  const uint32_t magnitude = wide & 0x7fu, sign = (wide & 0x80u) << 24;
  const float value = std::bit_cast<float>(magnitude << (23 - L::kDigits)) * kRebase;
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if constexpr (kFormat == Fp8Format::kE4M3) {
    bits = magnitude == L::kNan ? 0x7fc00000u : bits;
  } else {
    bits = magnitude > L::kLargest + 1 ? 0x7fc00000u : magnitude > L::kLargest ? kInfinity : bits;
  }
  return std::bit_cast<float>(bits | sign);
}

template <class T, Fp8Format kFormat, Fp8Overflow kOverflow>
FIVEFOLD_CLONES void quantise_range(const T* x, int64_t n, float scale, uint8_t* codes) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) codes[i] = encode<kFormat, kOverflow>(to_float(x[i]) * scale);
}

template <class T, Fp8Format kFormat>
FIVEFOLD_CLONES void dequantise_range(const uint8_t* codes, int64_t n, float inv_scale, T* out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = from_float<T>(decode<kFormat>(codes[i]) * inv_scale);
}

// As bits, whose order is that of magnitudes, NaN last.
template <class T>
FIVEFOLD_CLONES uint32_t amax_bits(const T* x, int64_t n) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(to_float(x[i])) & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

template <class T>
void quantise(const T* x, int64_t n, float scale, Fp8Format format, Fp8Overflow overflow, uint8_t* codes) {
  if (format == Fp8Format::kE4M3) {
    quantise_range<T, Fp8Format::kE4M3, Fp8Overflow::kSaturate>(x, n, scale, codes);
  } else if (overflow == Fp8Overflow::kSaturate) {
    quantise_range<T, Fp8Format::kE5M2, Fp8Overflow::kSaturate>(x, n, scale, codes);
  } else {
    quantise_range<T, Fp8Format::kE5M2, Fp8Overflow::kInfinity>(x, n, scale, codes);
  }
}

template <class T>
void dequantise(const uint8_t* codes, int64_t n, float inv_scale, Fp8Format format, T* out) {
  format == Fp8Format::kE4M3 ? dequantise_range<T, Fp8Format::kE4M3>(codes, n, inv_scale, out)
                             : dequantise_range<T, Fp8Format::kE5M2>(codes, n, inv_scale, out);
}

// Calls f(block, begin, length) for each row of each block: `begin` is the element where the row starts.
template <class F>
void for_each_block_row(const Fp8Blocks& b, int num_threads, const F& f) {
  const int64_t bands = std::max<int64_t>(1, independent_block_rows(b.cols) / b.block_rows);
  for_each_block(b.down(), bands, num_threads, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin * b.block_rows; row < std::min(b.rows, end * b.block_rows); ++row) {
      for (int64_t col = 0, block = row / b.block_rows * b.across(); col < b.cols; col += b.block_cols, ++block)
        f(block, row * b.cols + col, std::min(b.block_cols, b.cols - col));
    }
  });
}

}  // namespace

float fp8_scale(float amax, Fp8Format format, Fp8ScaleKind kind) {
  if (!(amax > 0) || !std::isfinite(amax)) return 1.0f;
  // The product with the reciprocal, as PyTorch divides a number by a tensor; the reciprocal itself may be infinite.
  const float scale = std::min(1.0f / amax * fp8_largest(format), std::numeric_limits<float>::max());
  if (kind == Fp8ScaleKind::kFloat32) return scale;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & kInfinity);
}

template <class T>
float fp8_amax(const T* x, int64_t n, int num_threads) {
  uint32_t largest = 0;
  if (num_threads == 1 || n <= kBlockElements) {
    largest = amax_bits(x, n);
  } else {
    std::vector<uint32_t> parts(static_cast<size_t>(div_ceil(n, kBlockElements)));
    for_each_block(n, kBlockElements, num_threads, [&](int64_t block, int64_t begin, int64_t end) {
      parts[static_cast<size_t>(block)] = amax_bits(x + begin, end - begin);
    });
    largest = *std::max_element(parts.begin(), parts.end());
  }
  return std::bit_cast<float>(largest);
}

template <class T>
void fp8_quantise(const T* x, int64_t n, float scale, Fp8Format format, Fp8Overflow overflow, uint8_t* codes,
                  int num_threads) {
  for_each_block(n, kBlockElements, num_threads, [&](int64_t, int64_t begin, int64_t end) {
    quantise(x + begin, end - begin, scale, format, overflow, codes + begin);
  });
}

template <class T>
void fp8_dequantise(const uint8_t* codes, int64_t n, float inv_scale, Fp8Format format, T* out, int num_threads) {
  for_each_block(n, kBlockElements, num_threads, [&](int64_t, int64_t begin, int64_t end) {
    dequantise(codes + begin, end - begin, inv_scale, format, out + begin);
  });
}

template <class T>
void fp8_block_amax(const T* x, const Fp8Blocks& blocks, float* amax, int num_threads) {
  std::fill(amax, amax + blocks.count(), 0.0f);
  for_each_block_row(blocks, num_threads, [&](int64_t block, int64_t begin, int64_t length) {
    const uint32_t bits = amax_bits(x + begin, length);
    amax[block] = std::bit_cast<float>(std::max(bits, std::bit_cast<uint32_t>(amax[block])));
  });
}

template <class T>
void fp8_quantise_blocks(const T* x, const Fp8Blocks& blocks, Fp8Format format, Fp8ScaleKind kind, uint8_t* codes,
                         float* inv_scales, int num_threads) {
  fp8_block_amax(x, blocks, inv_scales, num_threads);
  for (int64_t block = 0; block < blocks.count(); ++block)
    inv_scales[block] = fp8_scale(inv_scales[block], format, kind);
  for_each_block_row(blocks, num_threads, [&](int64_t block, int64_t begin, int64_t length) {
    quantise(x + begin, length, inv_scales[block], format, Fp8Overflow::kSaturate, codes + begin);
  });
  for (int64_t block = 0; block < blocks.count(); ++block) inv_scales[block] = 1.0f / inv_scales[block];
}

template <class T>
void fp8_dequantise_blocks(const uint8_t* codes, const float* inv_scales, const Fp8Blocks& blocks, Fp8Format format,
                           T* out, int num_threads) {
  for_each_block_row(blocks, num_threads, [&](int64_t block, int64_t begin, int64_t length) {
    dequantise(codes + begin, length, inv_scales[block], format, out + begin);
  });
}

#define FIVEFOLD_FP8(T)                                                                                          \
  template float fp8_amax(const T*, int64_t, int);                                                               \
  template void fp8_quantise(const T*, int64_t, float, Fp8Format, Fp8Overflow, uint8_t*, int);                   \
  template void fp8_dequantise(const uint8_t*, int64_t, float, Fp8Format, T*, int);                              \
  template void fp8_block_amax(const T*, const Fp8Blocks&, float*, int);                                         \
  template void fp8_quantise_blocks(const T*, const Fp8Blocks&, Fp8Format, Fp8ScaleKind, uint8_t*, float*, int); \
  template void fp8_dequantise_blocks(const uint8_t*, const float*, const Fp8Blocks&, Fp8Format, T*, int);
FIVEFOLD_FP8(float)
FIVEFOLD_FP8(BFloat16)
#undef FIVEFOLD_FP8

}  // namespace fivefold::kernels
