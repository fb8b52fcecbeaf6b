// fp8 in memory, bit for bit: e4m3fn (4 exponent bits, 3 of significand, largest 448, no infinity, one NaN a sign) and
// e5m2 (5 and 2, largest 57344, infinity and NaN as IEEE), as in Micikevicius et al., "FP8 formats for deep learning",
// 2022. Kernels cast, scale and decode; products are the business of whoever decodes. Codes are bytes.
//
// A scaled tensor is codes q and inverse scales s with x ~ q s. The scale that is multiplied on before the cast is
// largest / amax, so that the largest magnitude of the tensor or block becomes the largest of the format. All
// arithmetic is one fp32 product or quotient at a time: the same bits on every processor.
#pragma once

#include <cstdint>

#include "base/integer.h"
#include "kernels/element.h"

namespace fivefold::kernels {

enum class Fp8Format : uint8_t { kE4M3, kE5M2 };

// What becomes of a magnitude that rounds beyond the format's largest, infinity included. kSaturate: the largest.
// kInfinity: e5m2's infinity; e4m3 has none and saturates, as PyTorch's casts do from version 2.12 on.
enum class Fp8Overflow : uint8_t { kSaturate, kInfinity };

constexpr float fp8_largest(Fp8Format format) { return format == Fp8Format::kE4M3 ? 448.0f : 57344.0f; }

// Power-of-two scales are the fp32 ones rounded down to a power of two: applying them changes no digit.
enum class Fp8ScaleKind : uint8_t { kFloat32, kPowerOfTwo };

// What to multiply on: (1 / amax) largest. 1 when amax is 0 or not finite (the cast then saturates); the largest fp32
// number when the quotient would be infinite.
float fp8_scale(float amax, Fp8Format format, Fp8ScaleKind kind);

// Largest |x[i]|; 0 for n = 0. A NaN anywhere gives a NaN. T: float or BFloat16.
template <class T>
float fp8_amax(const T* x, int64_t n, int num_threads);

// codes[i] = x[i] * scale in fp32, rounded to the nearest value of the format, ties to even. A NaN keeps its sign.
template <class T>
void fp8_quantise(const T* x, int64_t n, float scale, Fp8Format format, Fp8Overflow overflow, uint8_t* codes,
                  int num_threads);

// out[i] = value of codes[i] times inv_scale. With inv_scale 1 exact, also in bf16. T: float or BFloat16.
template <class T>
void fp8_dequantise(const uint8_t* codes, int64_t n, float inv_scale, Fp8Format format, T* out, int num_threads);

// ---- Blocks of a matrix, each with its scale ----

// Blocks of block_rows x block_cols elements; those at the right and lower edge may be partial. 1 x 128 is usual for
// activations and gradients (along the dim that a product sums over), 128 x 128 for weights.
struct Fp8Blocks {
  int64_t rows = 0;  // of the matrix, row-major and contiguous
  int64_t cols = 0;
  int64_t block_rows = 1;
  int64_t block_cols = 128;

  int64_t down() const { return div_ceil(rows, block_rows); }
  int64_t across() const { return div_ceil(cols, block_cols); }
  int64_t count() const { return down() * across(); }
};

// amax [down, across].
template <class T>
void fp8_block_amax(const T* x, const Fp8Blocks& blocks, float* amax, int num_threads);

// Codes [rows, cols] and inverse scales [down, across] with the scale of each block's own amax. Saturating.
template <class T>
void fp8_quantise_blocks(const T* x, const Fp8Blocks& blocks, Fp8Format format, Fp8ScaleKind kind, uint8_t* codes,
                         float* inv_scales, int num_threads);

template <class T>
void fp8_dequantise_blocks(const uint8_t* codes, const float* inv_scales, const Fp8Blocks& blocks, Fp8Format format,
                           T* out, int num_threads);

}  // namespace fivefold::kernels
