#include "store/gguf_blocks.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace fivefold {
namespace {

constexpr std::array kBlocks = {
    GgufBlock{GgufType::kF32, "F32", 1, 4},       GgufBlock{GgufType::kF16, "F16", 1, 2},
    GgufBlock{GgufType::kBF16, "BF16", 1, 2},     GgufBlock{GgufType::kQ8_0, "Q8_0", 32, 34},
    GgufBlock{GgufType::kQ4_0, "Q4_0", 32, 18},   GgufBlock{GgufType::kQ4_1, "Q4_1", 32, 20},
    GgufBlock{GgufType::kQ5_0, "Q5_0", 32, 22},   GgufBlock{GgufType::kQ5_1, "Q5_1", 32, 24},
    GgufBlock{GgufType::kQ4_K, "Q4_K", 256, 144}, GgufBlock{GgufType::kQ5_K, "Q5_K", 256, 176},
    GgufBlock{GgufType::kQ6_K, "Q6_K", 256, 210},
};

// Types that files have and this reader has not, for its message alone.
struct OtherType {
  uint32_t number;
  std::string_view name;
};
constexpr OtherType kOthers[] = {
    {9, "Q8_1"},   {10, "Q2_K"},   {11, "Q3_K"},  {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},
    {26, "I32"},   {27, "I64"},    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {39, "MXFP4"}};

using Bytes = const unsigned char*;

template <typename T>
T load(Bytes at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// IEEE 754 binary16: sign, 5 bits of exponent (bias 15), 10 of fraction.
float half(Bytes at) {
  const uint32_t bits = load<uint16_t>(at);
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ffu;
  if (exponent == 31) return from_bits(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = std::ldexp(static_cast<float>(fraction), -24);
  return sign != 0 ? -small : small;
}

// Codes 0-15 of a block of 32 in the low halves, 16-31 in the high halves; `fifth` has a bit for each code.
template <typename Value>
void unpack_32(Bytes codes, uint32_t fifth, float* out, Value value) {
  for (int j = 0; j < 16; ++j) {
    out[j] = value((codes[j] & 15) | static_cast<int>(fifth >> j & 1) << 4);
    out[j + 16] = value((codes[j] >> 4) | static_cast<int>(fifth >> (j + 16) & 1) << 4);
  }
}

// The pair (s, t) number `index` of eight, packed in 12 bytes: bytes 0-3 and 4-7 hold the low six bits of the first
// four s and t, and in their top bits the high two of the last four, whose low halves are in bytes 8-11.
struct ScalePair {
  int scale, minimum;
};
ScalePair scale_pair(Bytes packed, int index) {
  if (index < 4) return {packed[index] & 63, packed[index + 4] & 63};
  return {(packed[index + 4] & 15) | (packed[index - 4] >> 6) << 4, (packed[index + 4] >> 4) | (packed[index] >> 6)
                                                                                                   << 4};
}

// Q4_K, and Q5_K where `fifth` is not null: its bit i of byte j belongs to code 32 i + j.
void unpack_k(Bytes head, Bytes fifth, Bytes codes, float* out) {
  const float d = half(head), m = half(head + 2);
  for (int part = 0; part < 8; ++part) {
    const ScalePair pair = scale_pair(head + 4, part);
    const float scale = d * static_cast<float>(pair.scale), minimum = m * static_cast<float>(pair.minimum);
    for (int j = 0; j < 32; ++j) {
      const int byte = codes[32 * (part / 2) + j];
      int code = part % 2 == 0 ? byte & 15 : byte >> 4;
      if (fifth != nullptr) code |= (fifth[j] >> part & 1) << 4;
      out[32 * part + j] = scale * static_cast<float>(code) - minimum;
    }
  }
}

// Two halves of 128 values; in each, quarter q of 32 takes its low bits from byte 32 (q mod 2) + j, low half for
// q < 2, its high bits from bits 2q and 2q + 1 of byte j, and its scales number 2q and 2q + 1 for 16 values each.
void unpack_q6_k(Bytes block, float* out) {
  const float d = half(block + 208);
  for (int part = 0; part < 2; ++part) {
    const Bytes low = block + 64 * part, high = block + 128 + 32 * part, scales = block + 192 + 8 * part;
    for (int q = 0; q < 4; ++q) {
      for (int j = 0; j < 32; ++j) {
        const int byte = low[32 * (q % 2) + j];
        const int code = (q < 2 ? byte & 15 : byte >> 4) | (high[j] >> (2 * q) & 3) << 4;
        const float scale = d * static_cast<float>(static_cast<int8_t>(scales[2 * q + j / 16]));
        out[128 * part + 32 * q + j] = scale * static_cast<float>(code - 32);
      }
    }
  }
}

void unpack(GgufType type, Bytes block, float* out) {
  switch (type) {
    case GgufType::kF32:
      *out = load<float>(block);
      return;
    case GgufType::kF16:
      *out = half(block);
      return;
    case GgufType::kBF16:
      *out = from_bits(static_cast<uint32_t>(load<uint16_t>(block)) << 16);
      return;
    case GgufType::kQ8_0: {
      const float d = half(block);
      for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(block[2 + j]));
      return;
    }
    case GgufType::kQ4_0: {
      const float d = half(block);
      return unpack_32(block + 2, 0, out, [&](int code) { return d * static_cast<float>(code - 8); });
    }
    case GgufType::kQ4_1: {
      const float d = half(block), m = half(block + 2);
      return unpack_32(block + 4, 0, out, [&](int code) { return d * static_cast<float>(code) + m; });
    }
    case GgufType::kQ5_0: {
      const float d = half(block);
      return unpack_32(block + 6, load<uint32_t>(block + 2), out,
                       [&](int code) { return d * static_cast<float>(code - 16); });
    }
    case GgufType::kQ5_1: {
      const float d = half(block), m = half(block + 2);
      return unpack_32(block + 8, load<uint32_t>(block + 4), out,
                       [&](int code) { return d * static_cast<float>(code) + m; });
    }
    case GgufType::kQ4_K:
      return unpack_k(block, nullptr, block + 16, out);
    case GgufType::kQ5_K:
      return unpack_k(block, block + 16, block + 48, out);
    case GgufType::kQ6_K:
      return unpack_q6_k(block, out);
  }
  FIVEFOLD_CHECK(false);
}

}  // namespace

const GgufBlock& gguf_block(GgufType type) {
  for (const GgufBlock& block : kBlocks)
    if (block.type == type) return block;
  FIVEFOLD_CHECK(false);
}

std::optional<GgufType> gguf_type(uint32_t number) {
  for (const GgufBlock& block : kBlocks)
    if (static_cast<uint32_t>(block.type) == number) return block.type;
  return std::nullopt;
}

std::string describe_gguf_type(uint32_t number) {
  std::string_view name;
  for (const GgufBlock& block : kBlocks)
    if (static_cast<uint32_t>(block.type) == number) name = block.name;
  for (const OtherType& other : kOthers)
    if (other.number == number) name = other.name;
  return name.empty() ? std::to_string(number) : std::to_string(number) + " (" + std::string(name) + ")";
}

std::string known_gguf_types() {
  std::string text;
  for (const GgufBlock& block : kBlocks) text += (text.empty() ? "" : ", ") + std::string(block.name);
  return text;
}

void dequantise(GgufType type, std::span<const std::byte> blocks, std::span<float> values) {
  const GgufBlock& block = gguf_block(type);
  const size_t count = blocks.size() / static_cast<size_t>(block.bytes);
  FIVEFOLD_CHECK(count * static_cast<size_t>(block.bytes) == blocks.size() &&
                 count * static_cast<size_t>(block.values) == values.size());
  const auto* bytes = reinterpret_cast<Bytes>(blocks.data());
  for (size_t i = 0; i < count; ++i)
    unpack(type, bytes + i * static_cast<size_t>(block.bytes), values.data() + i * static_cast<size_t>(block.values));
}

}  // namespace fivefold
