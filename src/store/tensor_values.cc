#include "store/tensor_values.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/integer.h"

namespace fivefold {
namespace {

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// 1 sign, 5 exponent (bias 15) and 10 fraction bits.
float from_fp16(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu, fraction = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {  // fraction x 2^-24
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

uint16_t to_fp16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // from 65520 on: infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: fraction x 2^-24, rounded by the addition's own ties to even
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// out[i] = convert(i-th `Stored` of the bytes, which may lie anywhere).
template <class Stored, class F>
std::vector<float> decode(std::span<const std::byte> bytes, const F& convert) {
  std::vector<float> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof stored, sizeof stored);
    values[i] = convert(stored);
  }
  return values;
}

template <class Stored, class F>
std::vector<std::byte> encode(std::span<const float> values, const F& convert) {
  std::vector<std::byte> bytes(values.size() * sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    const Stored stored = convert(values[i]);
    std::memcpy(bytes.data() + i * sizeof stored, &stored, sizeof stored);
  }
  return bytes;
}

}  // namespace

bool is_float_storage(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat64;
}

std::vector<float> decode_values(DType dtype, std::span<const std::byte> bytes) {
  FIVEFOLD_CHECK(is_float_storage(dtype) && bytes.size() % static_cast<size_t>(dtype_bytes(dtype)) == 0);
  switch (dtype) {
    case DType::kFloat16:
      return decode<uint16_t>(bytes, from_fp16);
    case DType::kBFloat16:
      return decode<uint16_t>(bytes, from_bf16);
    case DType::kFloat64:
      return decode<double>(bytes, [](double value) { return static_cast<float>(value); });
    default:
      return decode<float>(bytes, [](float value) { return value; });
  }
}

std::vector<std::byte> encode_values(std::span<const float> values, DType dtype) {
  FIVEFOLD_CHECK(is_float_storage(dtype));
  switch (dtype) {
    case DType::kFloat16:
      return encode<uint16_t>(values, to_fp16);
    case DType::kBFloat16:
      return encode<uint16_t>(values, to_bf16);
    case DType::kFloat64:
      return encode<double>(values, [](float value) { return static_cast<double>(value); });
    default:
      return encode<float>(values, [](float value) { return value; });
  }
}

}  // namespace fivefold
