// Compiled with -ffp-contract=off (see CMakeLists.txt): a fused multiply-add would change the last bit of an absmax
// that is stored as a code.
#include "kernels/nf4.h"

#include <cmath>
#include <cstring>

#include "kernels/clones.h"
#include "kernels/dynamic_map.h"
#include "kernels/nf4_expand.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {

const std::array<float, 16> kNf4Values = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

namespace {

// Blocks that a thread takes at a time: 16384 elements.
constexpr int64_t kTaskBlocks = 256;
constexpr int64_t kBlockBytes = kNf4Block / 2;
// As the library that the format comes from: a smaller divisor would make the quotient infinite.
constexpr float kSmallestAbsmax = 1e-38f;

uint8_t code_at(const uint8_t* codes, int64_t element) {
  return (element & 1) == 0 ? codes[element >> 1] >> 4 : codes[element >> 1] & 15;
}

// Index of an entry's group among those that the run touches.
int64_t group_of(int64_t first_block, int64_t index) {
  return (first_block + index) / kNf4ScaleGroup - first_block / kNf4ScaleGroup;
}

float absmax_at(const Nf4Scales& scales, const float* map, int64_t first_block, int64_t index) {
  if (scales.absmax != nullptr) return scales.absmax[index];
  return map[scales.absmax_codes[index]] * scales.absmax2[group_of(first_block, index)] + scales.offset;
}

// A block's 32 bytes of codes when it starts in a low nibble; reads 33 bytes.
FIVEFOLD_CLONES void shift_codes(const uint8_t* codes, uint8_t* shifted) {
  for (int64_t i = 0; i < kBlockBytes; ++i) shifted[i] = static_cast<uint8_t>(codes[i] << 4 | codes[i + 1] >> 4);
}

// The elements [begin, end) of a run that all lie in one block.
template <class T>
void dequantise_part(const Nf4Run& run, float absmax, int64_t begin, int64_t end, T* out) {
  for (int64_t i = begin; i < end; ++i) out[i - begin] = from_float<T>(kNf4Values[code_at(run.codes, i)] * absmax);
}

// Whole blocks: `index` of the first among those that the run touches, its first element `begin` of the run.
template <class T>
void dequantise_blocks(const Nf4Run& run, int64_t index, int64_t begin, int64_t num_blocks, T* out) {
  const float* map = dynamic_map(DynamicMapKind::kSigned).data();
  const int64_t first_block = run.first / kNf4Block;
  float absmax[kTaskBlocks];
  for (int64_t b = 0; b < num_blocks; ++b) absmax[b] = absmax_at(run.scales, map, first_block, index + b);
  const uint8_t* codes = run.codes + begin / 2;
  if (begin % 2 == 0) {
    nf4_expand(codes, absmax, num_blocks, out);
    return;
  }
  uint8_t shifted[kBlockBytes];
  for (int64_t b = 0; b < num_blocks; ++b) {
    shift_codes(codes + b * kBlockBytes, shifted);
    nf4_expand(shifted, absmax + b, 1, out + b * kNf4Block);
  }
}

template <class T>
FIVEFOLD_CLONES float absmax_of(const T* values, int64_t n) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::abs(to_float(values[i]));
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

struct Midpoints {
  float value[15];
};

template <class T>
FIVEFOLD_CLONES void codes_of(const T* values, int64_t n, float absmax, Midpoints mid, uint8_t* codes) {
  const float divisor = absmax > kSmallestAbsmax ? absmax : kSmallestAbsmax;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float x = to_float(values[i]) / divisor;
    int32_t code = 0;
    for (int k = 0; k < 15; ++k) code += x > mid.value[k] ? 1 : 0;
    codes[i] = static_cast<uint8_t>(code);
  }
}

}  // namespace

template <class T>
void nf4_dequantise(const Nf4Run& run, int64_t begin, int64_t end, T* out, int num_threads) {
  FIVEFOLD_CHECK(0 <= begin && begin <= end && end <= run.count);
  if (begin == end) return;
  const float* map = dynamic_map(DynamicMapKind::kSigned).data();
  const int64_t first_block = run.first / kNf4Block;
  // In blocks of the whole tensor: the first and the last may be cut.
  const int64_t low = run.first + begin, high = run.first + end;
  const int64_t full_low = div_ceil(low, kNf4Block), full_high = high / kNf4Block;
  const auto cut = [&](int64_t from, int64_t to) {
    const float absmax = absmax_at(run.scales, map, first_block, from / kNf4Block - first_block);
    dequantise_part(run, absmax, from - run.first, to - run.first, out + (from - low));
  };
  if (full_low > full_high) {
    cut(low, high);
    return;
  }
  if (low < full_low * kNf4Block) cut(low, full_low * kNf4Block);
  for_each_block(full_high - full_low, kTaskBlocks, num_threads, [&](int64_t, int64_t from, int64_t to) {
    const int64_t position = (full_low + from) * kNf4Block;
    dequantise_blocks(run, full_low + from - first_block, position - run.first, to - from, out + (position - low));
  });
  if (full_high * kNf4Block < high) cut(full_high * kNf4Block, high);
}

template <class T>
void nf4_absmax(const T* values, int64_t n, float* absmax, int num_threads) {
  for_each_block(n, kNf4Block, num_threads, [&](int64_t block, int64_t begin, int64_t end) {
    absmax[block] = absmax_of(values + begin, end - begin);
  });
}

template <class T>
void nf4_quantise(const T* values, int64_t first, int64_t count, const float* absmax, uint8_t* codes, int num_threads) {
  Midpoints mid;
  for (size_t k = 0; k < 15; ++k) mid.value[k] = (kNf4Values[k] + kNf4Values[k + 1]) / 2;
  // A task's elements start at an even position of the run, so that no two tasks share a byte.
  for_each_block(count, kTaskBlocks * kNf4Block, num_threads, [&](int64_t, int64_t begin, int64_t end) {
    uint8_t wide[kTaskBlocks * kNf4Block + 1];
    for (int64_t at = begin; at < end;) {
      const int64_t block = (first + at) / kNf4Block;
      const int64_t next = std::min(end, (block + 1) * kNf4Block - first);
      codes_of(values + at, next - at, absmax[block - first / kNf4Block], mid, wide + (at - begin));
      at = next;
    }
    wide[end - begin] = 0;
    for (int64_t i = 0; i < end - begin; i += 2)
      codes[(begin + i) / 2] = static_cast<uint8_t>(wide[i] << 4 | wide[i + 1]);
  });
}

void nf4_copy_codes(const uint8_t* whole, int64_t first, int64_t count, uint8_t* codes) {
  if (count == 0) return;
  if (first % 2 == 0) {
    std::memcpy(codes, whole + first / 2, static_cast<size_t>(nf4_code_bytes(count)));
    if (count % 2 != 0) codes[count / 2] &= 0xf0;
    return;
  }
  for (int64_t i = 0; i < count; i += 2) {
    const int low = i + 1 < count ? code_at(whole, first + i + 1) : 0;
    codes[i / 2] = static_cast<uint8_t>(code_at(whole, first + i) << 4 | low);
  }
}

float nf4_double_quantise(const float* absmax, int64_t num_blocks, uint8_t* codes, float* absmax2, int num_threads) {
  if (num_blocks == 0) return 0;
  double sum = 0;
  for (int64_t b = 0; b < num_blocks; ++b) sum += static_cast<double>(absmax[b]);
  const auto offset = static_cast<float>(sum / static_cast<double>(num_blocks));
  for_each_block(num_blocks, kNf4ScaleGroup, num_threads, [&](int64_t group, int64_t begin, int64_t end) {
    float centred[kNf4ScaleGroup];
    for (int64_t b = begin; b < end; ++b) centred[b - begin] = absmax[b] - offset;
    dynamic_quantise(DynamicMapKind::kSigned, centred, end - begin, kNf4ScaleGroup, codes + begin, absmax2 + group, 1);
  });
  return offset;
}

void nf4_restore_absmax(const Nf4Scales& scales, int64_t first, int64_t num_blocks, float* out) {
  const float* map = dynamic_map(DynamicMapKind::kSigned).data();
  for (int64_t b = 0; b < num_blocks; ++b) out[b] = absmax_at(scales, map, first / kNf4Block, b);
}

template void nf4_dequantise(const Nf4Run&, int64_t, int64_t, float*, int);
template void nf4_dequantise(const Nf4Run&, int64_t, int64_t, BFloat16*, int);
template void nf4_dequantise(const Nf4Run&, int64_t, int64_t, Float16*, int);
template void nf4_absmax(const float*, int64_t, float*, int);
template void nf4_absmax(const BFloat16*, int64_t, float*, int);
template void nf4_absmax(const Float16*, int64_t, float*, int);
template void nf4_quantise(const float*, int64_t, int64_t, const float*, uint8_t*, int);
template void nf4_quantise(const BFloat16*, int64_t, int64_t, const float*, uint8_t*, int);
template void nf4_quantise(const Float16*, int64_t, int64_t, const float*, uint8_t*, int);

}  // namespace fivefold::kernels
