#include "kernels/dynamic_map.h"

#include <algorithm>
#include <cmath>

#include "kernels/dynamic_block.h"
#include "kernels/parallel.h"

namespace fivefold::kernels {
namespace {

constexpr int kDecades = 7;

// Point i of n that divide [0.1, 1] evenly, from the nearer end: one fp32 rounding after the step's own, as
// torch.linspace has it, which made the maps that everybody's checkpoints refer to.
float division_point(int i, int n) {
  const float low = 0.1f, high = 1.0f;
  const float step = (high - low) / static_cast<float>(n - 1);
  return i < n / 2 ? std::fma(step, static_cast<float>(i), low) : std::fma(-step, static_cast<float>(n - 1 - i), high);
}

std::array<float, 256> make_map(DynamicMapKind kind) {
  const bool is_signed = kind == DynamicMapKind::kSigned;
  std::array<float, 256> map{};
  size_t count = 0;
  map[count++] = 0.0f;
  map[count++] = 1.0f;
  for (int decade = 0; decade < kDecades; ++decade) {
    const auto scale = static_cast<float>(std::pow(10.0, decade - (kDecades - 1)));
    const int points = (is_signed ? 1 << decade : 2 << decade) + 1;
    for (int i = 0; i + 1 < points; ++i) {
      const float value = scale * ((division_point(i, points) + division_point(i + 1, points)) / 2);
      map[count++] = value;
      if (is_signed) map[count++] = -value;
    }
  }
  FIVEFOLD_CHECK(count == map.size());
  std::sort(map.begin(), map.end());
  return map;
}

DynamicCodeTable make_code_table(DynamicMapKind kind) {
  constexpr uint32_t kNever = 0xffff;
  const std::array<float, 256>& map = dynamic_map(kind);
  const auto zero = static_cast<int>(std::find(map.begin(), map.end(), 0.0f) - map.begin());
  DynamicCodeTable table{};
  for (const int sign : {1, -1}) {
    const uint32_t first = sign > 0 ? 0 : DynamicCodeTable::kNumBins;
    int code = zero;
    for (uint32_t bin = 0; bin < DynamicCodeTable::kNumBins; ++bin) {
      const uint32_t low = (DynamicCodeTable::kFirstBin + bin) << 16;
      const int start = code;
      uint32_t threshold = kNever;
      // Magnitudes from `least` on belong to the code that is one further from zero.
      for (int next = code + sign; next >= 0 && next < 256; next += sign) {
        const auto n = static_cast<size_t>(next), c = static_cast<size_t>(code);
        const uint32_t middle = std::bit_cast<uint32_t>(std::abs((map[n] + map[c]) / 2));
        const uint32_t least = sign > 0 ? middle + 1 : middle;
        if (least >= low + 0x10000u) break;
        FIVEFOLD_CHECK(code == start, "a bin of the dynamic map holds two midpoints");
        code = next;
        if (least > low) threshold = (least - low) - 1;
      }
      // A midpoint on the bin's lower end: all of the bin is beyond it.
      const int base = code != start && threshold == kNever ? code : start;
      table.bins[first + bin] = static_cast<uint32_t>(base) << 16 | threshold;
    }
  }
  return table;
}

FIVEFOLD_CLONES void quantise_one(const uint32_t* bins, const float* values, int64_t n, uint8_t* codes, float* absmax) {
  *absmax = block_absmax(values, n);
  quantise_block(bins, values, n, *absmax, codes);
}

FIVEFOLD_CLONES void dequantise_one(const float* map, const uint8_t* codes, int64_t n, float absmax, float* values) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) values[i] = map[codes[i]] * absmax;
}

}  // namespace

const std::array<float, 256>& dynamic_map(DynamicMapKind kind) {
  static const std::array<float, 256> maps[2] = {make_map(DynamicMapKind::kSigned),
                                                 make_map(DynamicMapKind::kUnsigned)};
  return maps[static_cast<size_t>(kind)];
}

const DynamicCodeTable& dynamic_code_table(DynamicMapKind kind) {
  static const DynamicCodeTable tables[2] = {make_code_table(DynamicMapKind::kSigned),
                                             make_code_table(DynamicMapKind::kUnsigned)};
  return tables[static_cast<size_t>(kind)];
}

void dynamic_quantise(DynamicMapKind kind, const float* values, int64_t n, int64_t block, uint8_t* codes, float* absmax,
                      int num_threads) {
  const uint32_t* bins = dynamic_code_table(kind).bins.data();
  for_each_block(n, block, num_threads, [&](int64_t index, int64_t begin, int64_t end) {
    quantise_one(bins, values + begin, end - begin, codes + begin, absmax + index);
  });
}

void dynamic_dequantise(DynamicMapKind kind, const uint8_t* codes, const float* absmax, int64_t n, int64_t block,
                        float* values, int num_threads) {
  const float* map = dynamic_map(kind).data();
  for_each_block(n, block, num_threads, [&](int64_t index, int64_t begin, int64_t end) {
    dequantise_one(map, codes + begin, end - begin, absmax[index], values + begin);
  });
}

}  // namespace fivefold::kernels
