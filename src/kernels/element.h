// What the kernels compute on: fp32, bf16 and fp16 elements in memory, fp32 arithmetic in registers.
//
// `BFloat16` (the upper half of an fp32) and `Float16` (IEEE binary16) are storage only. They have the layout of every
// other library's, so a buffer of those may be passed after a pointer cast. Kernels are templates over the element,
// instantiated for `float` and both; `visit_element` turns an `ElementType` known at run time into one of them.
//
// Conversions are branch-free integer arithmetic, always inlined: so loops over them are vectorised in every variant of
// a kernel (clones.h). The compiler's own _Float16 is not: it converts element by element, in the baseline by a call.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace fivefold::kernels {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
static_assert(sizeof(BFloat16) == 2 && sizeof(Float16) == 2);

enum class ElementType : uint8_t { kFloat32, kBFloat16, kFloat16 };

// Whether a result replaces what its destination holds or is added to it. The sum is taken in fp32 and rounded once.
enum class Accumulate : uint8_t { kOverwrite, kAdd };

// Exact.
[[gnu::always_inline]] inline float to_float(float value) { return value; }
[[gnu::always_inline]] inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
[[gnu::always_inline]] inline float to_float(Float16 value) {
  constexpr uint32_t kExponent = 0x7c00u << 13;
  const uint32_t shifted = (value.bits & 0x7fffu) << 13;  // exponent and fraction at their fp32 places
  const uint32_t exponent = shifted & kExponent;
  const uint32_t normal = shifted + ((127u - 15u) << 23);
  const uint32_t special = normal + ((128u - 16u) << 23);  // infinity, NaN
  // A subnormal is fraction x 2^-24: with the exponent of 2^-14 set it is 2^-14 too large.
  const float subnormal = std::bit_cast<float>(normal + (1u << 23)) - 0x1p-14f;
  const uint32_t magnitude =
      exponent == kExponent ? special : (exponent == 0 ? std::bit_cast<uint32_t>(subnormal) : normal);
  return std::bit_cast<float>(magnitude | (static_cast<uint32_t>(value.bits & 0x8000u) << 16));
}

// Rounds to nearest, ties to even; beyond the largest number of the type to infinity. A NaN stays a (quiet) NaN of the
// same sign.
template <class T>
[[gnu::always_inline]] inline T from_float(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return BFloat16{static_cast<uint16_t>(value != value ? quiet_nan : rounded)};
  } else {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Below 2^-14 the fp32 adder rounds: in 0.5 + |x| a unit in the last place is 2^-24.
    const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - (126u << 23);
    // A tie at the largest number, 65520, carries into the exponent of infinity by itself.
    const uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t half = magnitude >= ((127u + 16u) << 23) ? special : (magnitude < (113u << 23) ? subnormal : normal);
    return Float16{static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u))};
  }
}

template <class T>
inline constexpr ElementType kElementTypeOf = std::is_same_v<T, float>      ? ElementType::kFloat32
                                              : std::is_same_v<T, BFloat16> ? ElementType::kBFloat16
                                                                            : ElementType::kFloat16;

// Calls f(std::type_identity<T>{}) with T of `type` and returns what it returns.
template <class F>
decltype(auto) visit_element(ElementType type, F&& f) {
  switch (type) {
    case ElementType::kBFloat16:
      return f(std::type_identity<BFloat16>{});
    case ElementType::kFloat16:
      return f(std::type_identity<Float16>{});
    case ElementType::kFloat32:
      break;
  }
  return f(std::type_identity<float>{});
}

// Where a reduced gradient (of a norm weight, a bias, an embedding table) goes: contiguous elements of any type.
struct GradTarget {
  void* data = nullptr;
  ElementType type = ElementType::kFloat32;
  Accumulate mode = Accumulate::kOverwrite;
};
template <class T>
GradTarget overwrite(T* data) {
  return {data, kElementTypeOf<T>, Accumulate::kOverwrite};
}
template <class T>
GradTarget add_to(T* data) {
  return {data, kElementTypeOf<T>, Accumulate::kAdd};
}

}  // namespace fivefold::kernels
