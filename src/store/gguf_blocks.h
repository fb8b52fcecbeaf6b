// The element types of GGUF tensors: how many values a block holds in how many bytes, and its values in fp32. Layouts
// as ggml documents them in ggml-common.h (the block_* structures): little-endian, nothing aligned. Not a quantiser.
// Pure functions, thread-safe.
//
// Below, d and m are fp16, and a code is an unsigned integer unless said otherwise:
//   F32, F16, BF16  one value
//   Q8_0   32 values,  34 bytes: d, 32 int8 codes                                        d code
//   Q4_0   32 values,  18 bytes: d, 16 bytes of codes                                    d (code - 8)
//   Q4_1   32 values,  20 bytes: d, m, 16 bytes of codes                                 d code + m
//   Q5_0   32 values,  22 bytes: d, 32 fifth bits, 16 bytes of codes                     d (code - 16)
//   Q5_1   32 values,  24 bytes: d, m, 32 fifth bits, 16 bytes of codes                  d code + m
//   Q4_K  256 values, 144 bytes: d, m, 8 six-bit pairs (s, t), 128 bytes of codes        (d s) code - m t
//   Q5_K  256 values, 176 bytes: d, m, the pairs, 32 bytes of fifth bits, 128 of codes   (d s) code - m t
//   Q6_K  256 values, 210 bytes: 128 bytes of low 4 bits, 64 of high 2 bits, 16 int8 s, d   (d s) (code - 32)
// In types of 32, byte j holds code j in its low and code j + 16 in its high half; in the K types, byte 32 g + j holds
// code 64 g + j and code 64 g + 32 + j. Each product is exact in fp32, except the last one of Q6_K.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fivefold {

// By their number in a file.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

struct GgufBlock {
  GgufType type;
  std::string_view name;  // "Q4_1"
  int64_t values, bytes;  // of one block
};

const GgufBlock& gguf_block(GgufType type);
// Nothing when the number is of no type that is read.
std::optional<GgufType> gguf_type(uint32_t number);
// "10 (Q2_K)" where ggml has a name for the number.
std::string describe_gguf_type(uint32_t number);
// "F32, F16, ...": what gguf_type() knows.
std::string known_gguf_types();

// REQUIRES: `blocks` is whole blocks, and `values` has room for exactly their values (checked).
void dequantise(GgufType type, std::span<const std::byte> blocks, std::span<float> values);

}  // namespace fivefold
