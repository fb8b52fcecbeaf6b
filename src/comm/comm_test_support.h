// For tests of this folder: buffers of vectors, half-precision values, and delays without clocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "comm/local_world.h"

namespace fivefold::comm_test {

// Bits of a bf16 and of an fp16.
enum class Bf16 : uint16_t {};
enum class Fp16 : uint16_t {};

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kFloat64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kInt64;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::kUint8;
}
template <>
constexpr DType dtype_of<Bf16>() {
  return DType::kBFloat16;
}
template <>
constexpr DType dtype_of<Fp16>() {
  return DType::kFloat16;
}

template <typename T>
Buffer buffer_of(T* first, int64_t count) {
  return {.pointer = first, .bytes = count * static_cast<int64_t>(sizeof(T)), .dtype = dtype_of<T>()};
}
template <typename T>
Buffer buffer_of(std::vector<T>& x) {
  return buffer_of(x.data(), static_cast<int64_t>(x.size()));
}

// An oracle for rounding that works on values, not on bits: the nearest multiple of the unit in the last place, ties to
// even, of a format with `mantissa_bits` stored bits and smallest normal exponent `min_exponent`.
inline double round_to(double x, int mantissa_bits, int min_exponent) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), min_exponent);
  const double unit = std::ldexp(1.0, exponent - mantissa_bits);
  return std::nearbyint(x / unit) * unit;
}
// The bits of a finite value that the format holds, put together from sign, exponent and mantissa.
inline uint16_t encode(double x, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  x = std::fabs(x);
  if (x == 0) return sign;
  const int exponent = std::max(std::ilogb(x), 1 - bias);
  const auto mantissa = static_cast<int>(std::ldexp(x, mantissa_bits - exponent));  // with the leading one, if normal
  return static_cast<uint16_t>(sign | (((exponent + bias - 1) << mantissa_bits) + mantissa));
}
inline double decode(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

template <typename T>
double value_of(T x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return decode(static_cast<uint16_t>(x), 8, 7);
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return decode(static_cast<uint16_t>(x), 5, 10);
  } else {
    return static_cast<double>(x);
  }
}
// The nearest element.
template <typename T>
T element(double x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return static_cast<Bf16>(encode(round_to(x, 7, -126), 8, 7));
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return static_cast<Fp16>(encode(round_to(x, 10, -14), 5, 10));
  } else {
    return static_cast<T>(x);
  }
}

// A hook that lets other threads run a random number of times: other interleavings each time, no clock.
inline std::function<void(HookedCall&)> random_delays(unsigned seed) {
  return [seed](const HookedCall& call) {
    if (call.point == HookPoint::kCalled) return;
    std::minstd_rand random(seed * 7919u + static_cast<unsigned>(call.rank) * 104729u +
                            static_cast<unsigned>(call.record.sequence) * 31u +
                            static_cast<unsigned>(call.point) * 17u + 1u);
    random.discard(3);
    const unsigned yields = random() % 4 == 0 ? random() % 200 : random() % 5;
    for (unsigned i = 0; i < yields; ++i) std::this_thread::yield();
  };
}

}  // namespace fivefold::comm_test
