// NF4: 4-bit storage of weights (Dettmers et al., "QLoRA", 2023). A tensor is flattened in row-major order and cut into
// blocks of 64, which cross the ends of rows; an element is a code (0-15) of a fixed table of quantiles times the
// largest magnitude (absmax) of its block. With double quantisation the absmax are 8-bit codes themselves.
//
// Note [NF4 layout]
// A rank may hold any contiguous run [first, first + count) of the flattened tensor ("global" positions below), also
// one that starts or ends inside a block. Its bytes:
//   codes         two elements a byte. Element i of the run, not of the tensor, lies in byte i / 2: the high nibble for
//                 even i, the low one for odd i. An odd count leaves the last low nibble 0. nf4_code_bytes(count).
//   absmax        one entry for each block that the run touches, in order: entry 0 is global block first / 64.
//                 nf4_blocks(first, count) entries: float, or with double quantisation uint8 codes c of the signed
//                 dynamic map (dynamic_map.h), to be read as map[c] absmax2 + offset.
//   absmax2       double quantisation: one float for each group of 256 global blocks that the run touches: entry 0 is
//                 group first / (64 * 256). nf4_scale_groups(first, count) entries.
//   offset        double quantisation: one float for the whole tensor, the mean of its absmax.
// Whole tensors are the run with first = 0, and have the bytes that bitsandbytes writes. 4 + 32/64 bits an element, or
// 4 + 8/64 + 32/(64 * 256) = 4.127 bits with double quantisation.
//
// Values are computed as two products and a sum that are each rounded in fp32: the same bits on every processor.
#pragma once

#include <array>
#include <cstdint>

#include "base/integer.h"
#include "kernels/element.h"

namespace fivefold::kernels {

inline constexpr int64_t kNf4Block = 64;        // elements that share an absmax
inline constexpr int64_t kNf4ScaleGroup = 256;  // blocks that share an absmax2

constexpr int64_t nf4_code_bytes(int64_t count) { return div_ceil(count, 2); }
constexpr int64_t nf4_blocks(int64_t first, int64_t count) {
  return count == 0 ? 0 : div_ceil(first + count, kNf4Block) - div_floor(first, kNf4Block);
}
constexpr int64_t nf4_scale_groups(int64_t first, int64_t count) {
  constexpr int64_t kGroup = kNf4Block * kNf4ScaleGroup;
  return count == 0 ? 0 : div_ceil(first + count, kGroup) - div_floor(first, kGroup);
}

// The table: quantiles of the standard normal distribution scaled to [-1, 1], with an exact 0 (code 7); from the
// paper's appendix.
extern const std::array<float, 16> kNf4Values;

// Either `absmax`, or the three others.
struct Nf4Scales {
  const float* absmax = nullptr;
  const uint8_t* absmax_codes = nullptr;
  const float* absmax2 = nullptr;
  float offset = 0;
};

// Note [NF4 layout].
struct Nf4Run {
  const uint8_t* codes = nullptr;
  Nf4Scales scales;
  int64_t first = 0;  // global position of the run's element 0
  int64_t count = 0;
};

// out[i] = element begin + i of the run, for the elements [begin, end) of it; T is float, or BFloat16 (the fp32 value
// rounded to nearest). Quickest where first + begin is a multiple of 64; an odd begin costs a shift of the codes.
template <class T>
void nf4_dequantise(const Nf4Run& run, int64_t begin, int64_t end, T* out, int num_threads);

// ---- Quantisation ----

// absmax[b] of every block of a whole tensor: [div_ceil(n, 64)].
template <class T>
void nf4_absmax(const T* values, int64_t n, float* absmax, int num_threads);

// Codes of a run from its values and the absmax of the blocks that it touches, as computed over the whole blocks
// (single precision ones, also when they are stored as codes afterwards). Nearest value of the table to x / absmax; on
// a midpoint the lower code. A block of zeros gets code 7.
template <class T>
void nf4_quantise(const T* values, int64_t first, int64_t count, const float* absmax, uint8_t* codes, int num_threads);

// A run's codes out of the codes of a whole tensor.
void nf4_copy_codes(const uint8_t* whole, int64_t first, int64_t count, uint8_t* codes);

// Double quantisation of a whole tensor's absmax [num_blocks]: offset = mean (summed in fp64); absmax - offset in
// groups of 256 against the signed dynamic map. codes [num_blocks], absmax2 [div_ceil(num_blocks, 256)]. Returns the
// offset.
float nf4_double_quantise(const float* absmax, int64_t num_blocks, uint8_t* codes, float* absmax2, int num_threads);

// out[i] = absmax of the i-th block that a run touches, for num_blocks of them, restored from either form.
void nf4_restore_absmax(const Nf4Scales& scales, int64_t first, int64_t num_blocks, float* out);

}  // namespace fivefold::kernels
