// Note [Table in a register]
// A block's 64 values are 16 different ones. They are computed once a block, and the codes then pick them by a permute
// of a register, which no compiler finds in a loop over a table: hence intrinsics. Code pairs become lanes by shifts: a
// byte b, widened to a lane pair, is (b >> 4) | (b << lane), and the permute ignores the bits above the code.
#include "kernels/nf4_expand.h"

#include "kernels/clones.h"
#include "kernels/instruction_set.h"
#include "kernels/nf4.h"

#if defined(__x86_64__) && !defined(FIVEFOLD_KERNELS_ONE_VARIANT)
#define FIVEFOLD_NF4_PERMUTE
#include <immintrin.h>
#endif

namespace fivefold::kernels {
namespace {

constexpr int64_t kBytes = kNf4Block / 2;

template <class T>
void expand_by_table(const uint8_t* codes, const float* absmax, int64_t num_blocks, T* out) {
  for (int64_t b = 0; b < num_blocks; ++b) {
    T values[16];
    for (size_t c = 0; c < 16; ++c) values[c] = from_float<T>(kNf4Values[c] * absmax[b]);
    for (int64_t i = 0; i < kBytes; ++i) {
      const uint8_t pair = codes[b * kBytes + i];
      out[b * kNf4Block + 2 * i] = values[pair >> 4];
      out[b * kNf4Block + 2 * i + 1] = values[pair & 15];
    }
  }
}

#ifdef FIVEFOLD_NF4_PERMUTE
#define FIVEFOLD_AVX512 __attribute__((target("arch=x86-64-v4")))
#define FIVEFOLD_AVX2 __attribute__((target("arch=x86-64-v3")))

// Lane by lane what from_float<BFloat16> does, NaN apart: an absmax that is none makes every value of its block one,
// and a NaN's upper half with the quiet bit set is one.
FIVEFOLD_AVX512 inline __m256i round_to_bf16(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16));
}

FIVEFOLD_AVX512 void expand_avx512(const uint8_t* codes, const float* absmax, int64_t num_blocks, BFloat16* out) {
  const __m512 table = _mm512_loadu_ps(kNf4Values.data());
  for (int64_t b = 0; b < num_blocks; ++b) {
    const __m256i once = round_to_bf16(_mm512_mul_ps(table, _mm512_set1_ps(absmax[b])));
    const __m512i values = _mm512_broadcast_i64x4(once);  // 32 lanes: bit 4 of an index is ignored
    for (int64_t half = 0; half < 2; ++half) {
      const __m512i pairs = _mm512_cvtepu8_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + b * kBytes + half * (kBytes / 2))));
      const __m512i index = _mm512_or_si512(_mm512_srli_epi32(pairs, 4), _mm512_slli_epi32(pairs, 16));
      _mm512_storeu_si512(out + b * kNf4Block + half * 32, _mm512_permutexvar_epi16(index, values));
    }
  }
}

FIVEFOLD_AVX512 void expand_avx512(const uint8_t* codes, const float* absmax, int64_t num_blocks, float* out) {
  const __m512 table = _mm512_loadu_ps(kNf4Values.data());
  for (int64_t b = 0; b < num_blocks; ++b) {
    const __m512 values = _mm512_mul_ps(table, _mm512_set1_ps(absmax[b]));
    for (int64_t quarter = 0; quarter < 4; ++quarter) {
      const __m512i pairs = _mm512_cvtepu8_epi64(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + b * kBytes + quarter * (kBytes / 4))));
      const __m512i index = _mm512_or_si512(_mm512_srli_epi64(pairs, 4), _mm512_slli_epi64(pairs, 32));
      _mm512_storeu_ps(out + b * kNf4Block + quarter * 16, _mm512_permutexvar_ps(index, values));
    }
  }
}

// Codes of 16 bytes in the order of the elements.
struct Indices {
  __m128i low, high;
};
FIVEFOLD_AVX2 inline Indices unpack(const uint8_t* codes) {
  const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i nibble = _mm_set1_epi8(15);
  const __m128i even = _mm_and_si128(_mm_srli_epi16(pairs, 4), nibble), odd = _mm_and_si128(pairs, nibble);
  return {_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd)};
}

// The bytes of the 16 values in two registers, each permuted by the codes.
FIVEFOLD_AVX2 void expand_avx2(const uint8_t* codes, const float* absmax, int64_t num_blocks, BFloat16* out) {
  for (int64_t b = 0; b < num_blocks; ++b) {
    alignas(16) uint8_t bytes[2][16];
    for (size_t c = 0; c < 16; ++c) {
      const uint16_t bits = from_float<BFloat16>(kNf4Values[c] * absmax[b]).bits;
      bytes[0][c] = static_cast<uint8_t>(bits);
      bytes[1][c] = static_cast<uint8_t>(bits >> 8);
    }
    const __m128i low = _mm_load_si128(reinterpret_cast<const __m128i*>(bytes[0]));
    const __m128i high = _mm_load_si128(reinterpret_cast<const __m128i*>(bytes[1]));
    for (int64_t half = 0; half < 2; ++half) {
      const Indices index = unpack(codes + b * kBytes + half * 16);
      auto* to = reinterpret_cast<__m128i*>(out + b * kNf4Block + half * 32);
      for (const __m128i i : {index.low, index.high}) {
        const __m128i l = _mm_shuffle_epi8(low, i), h = _mm_shuffle_epi8(high, i);
        _mm_storeu_si128(to++, _mm_unpacklo_epi8(l, h));
        _mm_storeu_si128(to++, _mm_unpackhi_epi8(l, h));
      }
    }
  }
}

FIVEFOLD_AVX2 void expand_avx2(const uint8_t* codes, const float* absmax, int64_t num_blocks, float* out) {
  const __m256 table_low = _mm256_loadu_ps(kNf4Values.data()), table_high = _mm256_loadu_ps(kNf4Values.data() + 8);
  for (int64_t b = 0; b < num_blocks; ++b) {
    const __m256 scale = _mm256_set1_ps(absmax[b]);
    const __m256 low = _mm256_mul_ps(table_low, scale), high = _mm256_mul_ps(table_high, scale);
    for (int64_t half = 0; half < 2; ++half) {
      const Indices index = unpack(codes + b * kBytes + half * 16);
      float* to = out + b * kNf4Block + half * 32;
      for (__m128i i : {index.low, _mm_srli_si128(index.low, 8), index.high, _mm_srli_si128(index.high, 8)}) {
        const __m256i lanes = _mm256_cvtepu8_epi32(i);
        // Bit 3 of the code, moved to the sign, chooses the half of the table.
        const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(lanes, 28));
        _mm256_storeu_ps(
            to, _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, lanes), _mm256_permutevar8x32_ps(high, lanes), upper));
        to += 8;
      }
    }
  }
}
#endif

template <class T>
void expand(const uint8_t* codes, const float* absmax, int64_t num_blocks, T* out, std::string_view variant) {
#ifdef FIVEFOLD_NF4_PERMUTE
  if (variant == "x86-64-v4") return expand_avx512(codes, absmax, num_blocks, out);
  if (variant == "x86-64-v3") return expand_avx2(codes, absmax, num_blocks, out);
#endif
  expand_by_table(codes, absmax, num_blocks, out);
}

FIVEFOLD_CLONES void narrow_block(const float* values, Float16* out) {
#pragma omp simd
  for (int64_t i = 0; i < kNf4Block; ++i) out[i] = from_float<Float16>(values[i]);
}

}  // namespace

void nf4_expand(const uint8_t* codes, const float* absmax, int64_t num_blocks, float* out, std::string_view variant) {
  expand(codes, absmax, num_blocks, out, variant);
}
void nf4_expand(const uint8_t* codes, const float* absmax, int64_t num_blocks, BFloat16* out,
                std::string_view variant) {
  expand(codes, absmax, num_blocks, out, variant);
}

void nf4_expand(const uint8_t* codes, const float* absmax, int64_t num_blocks, Float16* out, std::string_view variant) {
  float values[kNf4Block];
  for (int64_t b = 0; b < num_blocks; ++b) {
    expand(codes + b * kBytes, absmax + b, 1, values, variant);
    narrow_block(values, out + b * kNf4Block);
  }
}

}  // namespace fivefold::kernels
