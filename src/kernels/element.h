// What the kernels compute on: fp32 and bf16 elements in memory, fp32 arithmetic in registers.
//
// `BFloat16` is storage only: 16 bits, the upper half of an fp32. It has the layout of every other library's bf16, so a
// buffer of those may be passed after a pointer cast. Kernels are templates over the element, instantiated for `float`
// and `BFloat16`; `visit_element` turns an `ElementType` known at run time into one of them.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace fivefold::kernels {

struct BFloat16 {
  uint16_t bits;
};
static_assert(sizeof(BFloat16) == 2);

enum class ElementType : uint8_t { kFloat32, kBFloat16 };

// Whether a result replaces what its destination holds or is added to it. The sum is taken in fp32 and rounded once.
enum class Accumulate : uint8_t { kOverwrite, kAdd };

// Exact.
inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

// Rounds to nearest, ties to even; beyond the largest bf16 to infinity. A NaN stays a (quiet) NaN of the same sign.
template <class T>
inline T from_float(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return BFloat16{static_cast<uint16_t>(value != value ? quiet_nan : rounded)};
  }
}

template <class T>
inline constexpr ElementType kElementTypeOf = std::is_same_v<T, float> ? ElementType::kFloat32 : ElementType::kBFloat16;

// Calls f(std::type_identity<float>{}) or f(std::type_identity<BFloat16>{}) and returns what it returns.
template <class F>
decltype(auto) visit_element(ElementType type, F&& f) {
  return type == ElementType::kFloat32 ? f(std::type_identity<float>{}) : f(std::type_identity<BFloat16>{});
}

// Where a reduced gradient (of a norm weight, a bias, an embedding table) goes: contiguous elements of either type.
struct GradTarget {
  void* data = nullptr;
  ElementType type = ElementType::kFloat32;
  Accumulate mode = Accumulate::kOverwrite;
};
inline GradTarget overwrite(float* data) { return {data, ElementType::kFloat32, Accumulate::kOverwrite}; }
inline GradTarget overwrite(BFloat16* data) { return {data, ElementType::kBFloat16, Accumulate::kOverwrite}; }
inline GradTarget add_to(float* data) { return {data, ElementType::kFloat32, Accumulate::kAdd}; }
inline GradTarget add_to(BFloat16* data) { return {data, ElementType::kBFloat16, Accumulate::kAdd}; }

}  // namespace fivefold::kernels
