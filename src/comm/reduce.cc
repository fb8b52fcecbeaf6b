#include "comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstddef>

// Each kernel is compiled for three instruction sets and chosen when the program is loaded. That happens before a
// sanitizer's runtime is up, so sanitized builds have one version.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#define FIVEFOLD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FIVEFOLD_CLONES
#endif
#define FIVEFOLD_INLINE inline __attribute__((always_inline))

namespace fivefold {
namespace {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// Conversions to and from the type that sums are kept in. Branch-free, so that loops over them vectorise.
template <typename Sum, typename T>
FIVEFOLD_INLINE Sum widen(T x) {
  return static_cast<Sum>(x);
}
template <>
FIVEFOLD_INLINE float widen<float, BFloat16>(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
template <>
FIVEFOLD_INLINE float widen<float, Float16>(Float16 x) {
  constexpr uint32_t kExponent = 0x7c00u << 13;
  const uint32_t shifted = (x.bits & 0x7fffu) << 13;  // exponent and mantissa at their fp32 places
  const uint32_t exponent = shifted & kExponent;
  const uint32_t normal = shifted + ((127u - 15u) << 23);
  const uint32_t infinite = normal + ((128u - 16u) << 23);
  // A subnormal is mantissa * 2^-24: give it the exponent of 2^-14 and take that away again.
  const float subnormal = std::bit_cast<float>(normal + (1u << 23)) - std::bit_cast<float>(113u << 23);
  const uint32_t magnitude =
      exponent == kExponent ? infinite : (exponent == 0 ? std::bit_cast<uint32_t>(subnormal) : normal);
  return std::bit_cast<float>(magnitude | (static_cast<uint32_t>(x.bits & 0x8000u) << 16));
}

// Round to nearest, ties to even.
template <typename T, typename Sum>
FIVEFOLD_INLINE T narrow(Sum x) {
  return static_cast<T>(x);
}
template <>
FIVEFOLD_INLINE BFloat16 narrow<BFloat16, float>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}
template <>
FIVEFOLD_INLINE Float16 narrow<Float16, float>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 the fp32 adder does the rounding: in 0.5 + |x| one unit in the last place is 2^-24.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - (126u << 23);
  const uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;  // NaN, or infinity from 65536 on
  const uint32_t half = magnitude >= ((127u + 16u) << 23) ? special : (magnitude < (113u << 23) ? subnormal : normal);
  return {static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u))};
}

template <Reduction kReduction, typename Sum>
FIVEFOLD_INLINE Sum combine(Sum a, Sum b) {
  if constexpr (kReduction == Reduction::kSum) {
    return a + b;
  } else {
    return (a > b || a != a) ? a : b;
  }
}

template <typename Sum, typename T>
FIVEFOLD_INLINE void load_block(Sum* __restrict sum, const T* __restrict x, ptrdiff_t n) {
  for (ptrdiff_t i = 0; i < n; ++i) sum[i] = widen<Sum, T>(x[i]);
}
template <Reduction kReduction, typename Sum, typename T>
FIVEFOLD_INLINE void load_two_blocks(Sum* __restrict sum, const T* __restrict x, const T* __restrict y, ptrdiff_t n) {
  for (ptrdiff_t i = 0; i < n; ++i) sum[i] = combine<kReduction>(widen<Sum, T>(x[i]), widen<Sum, T>(y[i]));
}
template <Reduction kReduction, typename Sum, typename T>
FIVEFOLD_INLINE void combine_block(Sum* __restrict sum, const T* __restrict x, ptrdiff_t n) {
  for (ptrdiff_t i = 0; i < n; ++i) sum[i] = combine<kReduction>(sum[i], widen<Sum, T>(x[i]));
}
template <typename Sum, typename T>
FIVEFOLD_INLINE void store_block(T* __restrict out, const Sum* __restrict sum, ptrdiff_t n) {
  for (ptrdiff_t i = 0; i < n; ++i) out[i] = narrow<T, Sum>(sum[i]);
}

constexpr int64_t kBlockElements = 2048;  // 8 KiB of fp32 sums

// The whole reduction for one combination of types; inlined into a kernel per combination below.
template <Reduction kReduction, typename Sum, typename T, typename Out>
FIVEFOLD_INLINE void reduce_all(const void* const* sources, size_t num_sources, int64_t count, void* out, Output mode) {
  alignas(64) Sum sum[kBlockElements];
  for (int64_t begin = 0; begin < count; begin += kBlockElements) {
    const ptrdiff_t n = std::min(kBlockElements, count - begin);
    const auto source = [&](size_t s) { return static_cast<const T*>(sources[s]) + begin; };
    Out* const out_block = static_cast<Out*>(out) + begin;
    if (num_sources == 1) {
      load_block<Sum, T>(sum, source(0), n);
    } else {
      load_two_blocks<kReduction, Sum, T>(sum, source(0), source(1), n);
    }
    for (size_t s = 2; s < num_sources; ++s) combine_block<kReduction, Sum, T>(sum, source(s), n);
    if (mode == Output::kAccumulate) combine_block<kReduction, Sum, Out>(sum, out_block, n);
    store_block<Sum, Out>(out_block, sum, n);
  }
}

// Multiversioning works on plain functions only: one for each combination. Unsigned types make integer sums wrap.
#define FIVEFOLD_REDUCE_KERNEL(name, reduction, Sum, T, Out)                                               \
  FIVEFOLD_CLONES void name(const void* const* sources, size_t n, int64_t count, void* out, Output mode) { \
    reduce_all<reduction, Sum, T, Out>(sources, n, count, out, mode);                                      \
  }

FIVEFOLD_REDUCE_KERNEL(sum_float32, Reduction::kSum, float, float, float)
FIVEFOLD_REDUCE_KERNEL(sum_bfloat16, Reduction::kSum, float, BFloat16, BFloat16)
FIVEFOLD_REDUCE_KERNEL(sum_bfloat16_float32, Reduction::kSum, float, BFloat16, float)
FIVEFOLD_REDUCE_KERNEL(sum_float16, Reduction::kSum, float, Float16, Float16)
FIVEFOLD_REDUCE_KERNEL(sum_float16_float32, Reduction::kSum, float, Float16, float)
FIVEFOLD_REDUCE_KERNEL(sum_float64, Reduction::kSum, double, double, double)
FIVEFOLD_REDUCE_KERNEL(sum_int32, Reduction::kSum, uint32_t, uint32_t, uint32_t)
FIVEFOLD_REDUCE_KERNEL(sum_int64, Reduction::kSum, uint64_t, uint64_t, uint64_t)
FIVEFOLD_REDUCE_KERNEL(max_float32, Reduction::kMax, float, float, float)
FIVEFOLD_REDUCE_KERNEL(max_bfloat16, Reduction::kMax, float, BFloat16, BFloat16)
FIVEFOLD_REDUCE_KERNEL(max_bfloat16_float32, Reduction::kMax, float, BFloat16, float)
FIVEFOLD_REDUCE_KERNEL(max_float16, Reduction::kMax, float, Float16, Float16)
FIVEFOLD_REDUCE_KERNEL(max_float16_float32, Reduction::kMax, float, Float16, float)
FIVEFOLD_REDUCE_KERNEL(max_float64, Reduction::kMax, double, double, double)
FIVEFOLD_REDUCE_KERNEL(max_int32, Reduction::kMax, int32_t, int32_t, int32_t)
FIVEFOLD_REDUCE_KERNEL(max_int64, Reduction::kMax, int64_t, int64_t, int64_t)
#undef FIVEFOLD_REDUCE_KERNEL

using Kernel = void (*)(const void* const* sources, size_t n, int64_t count, void* out, Output mode);

Kernel find_kernel(DType dtype, DType out_dtype, Reduction reduction) {
  const bool sum = reduction == Reduction::kSum;
  if (out_dtype != dtype) {
    FIVEFOLD_CHECK(out_dtype == DType::kFloat32);
    if (dtype == DType::kBFloat16) return sum ? sum_bfloat16_float32 : max_bfloat16_float32;
    if (dtype == DType::kFloat16) return sum ? sum_float16_float32 : max_float16_float32;
    FIVEFOLD_CHECK(false, "only half precision widens to fp32");
  }
  switch (dtype) {
    case DType::kFloat32:
      return sum ? sum_float32 : max_float32;
    case DType::kBFloat16:
      return sum ? sum_bfloat16 : max_bfloat16;
    case DType::kFloat16:
      return sum ? sum_float16 : max_float16;
    case DType::kFloat64:
      return sum ? sum_float64 : max_float64;
    case DType::kInt32:
      return sum ? sum_int32 : max_int32;
    case DType::kInt64:
      return sum ? sum_int64 : max_int64;
    default:
      FIVEFOLD_CHECK(false, "this dtype cannot be reduced");
  }
}

}  // namespace

void reduce_in_order(std::span<const void* const> sources, int64_t count, DType dtype, Reduction reduction, void* out,
                     DType out_dtype, Output mode) {
  FIVEFOLD_CHECK(!sources.empty());
  find_kernel(dtype, out_dtype, reduction)(sources.data(), sources.size(), count, out, mode);
}

}  // namespace fivefold
