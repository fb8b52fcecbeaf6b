#include "cli/merged_matrix.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/check.h"
#include "kernels/nf4.h"

namespace fivefold {
namespace {

int num_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

}  // namespace

void merge_into(std::span<float> weight, std::span<const float> a, std::span<const float> b,
                std::span<const float> magnitude, int64_t rank, double scale) {
  const auto r = static_cast<size_t>(rank), in = a.size() / r, out = b.size() / r;
  FIVEFOLD_CHECK(a.size() == r * in && b.size() == out * r && weight.size() == out * in);
  FIVEFOLD_CHECK(magnitude.empty() || magnitude.size() == out);
  const auto factor = static_cast<float>(scale);
  std::vector<float> row(in);
  for (size_t o = 0; o < out; ++o) {
    std::fill(row.begin(), row.end(), 0.0f);
    // As a fused multiply-add in fp32, in the order of k: the product is exact in fp64.
    for (size_t k = 0; k < r; ++k) {
      const double b_ok = b[o * r + k];
      const float* a_k = a.data() + k * in;
      for (size_t i = 0; i < in; ++i) row[i] = static_cast<float>(b_ok * a_k[i] + row[i]);
    }
    float* w = weight.data() + o * in;
    double squares = 0;
    for (size_t i = 0; i < in; ++i) {
      w[i] += factor * row[i];
      squares += static_cast<double>(w[i]) * w[i];
    }
    // A row of zeros has no direction that could be scaled: it stays.
    if (magnitude.empty() || squares == 0) continue;
    const auto stretch = static_cast<float>(magnitude[o] / std::sqrt(squares));
    for (size_t i = 0; i < in; ++i) w[i] *= stretch;
  }
}

std::vector<float> through_nf4(std::span<const float> values, bool double_quantization) {
  using namespace kernels;
  const auto n = static_cast<int64_t>(values.size());
  const int64_t blocks = nf4_blocks(0, n);
  const int threads = num_threads();
  std::vector<float> absmax(static_cast<size_t>(blocks)), result(values.size());
  std::vector<uint8_t> codes(static_cast<size_t>(nf4_code_bytes(n)));
  nf4_absmax(values.data(), n, absmax.data(), threads);
  nf4_quantise(values.data(), 0, n, absmax.data(), codes.data(), threads);
  Nf4Run run{.codes = codes.data(), .scales = {.absmax = absmax.data()}, .first = 0, .count = n};
  std::vector<uint8_t> absmax_codes;
  std::vector<float> absmax2;
  if (double_quantization) {
    absmax_codes.resize(static_cast<size_t>(blocks));
    absmax2.resize(static_cast<size_t>(nf4_scale_groups(0, n)));
    const float offset = nf4_double_quantise(absmax.data(), blocks, absmax_codes.data(), absmax2.data(), threads);
    run.scales = {.absmax_codes = absmax_codes.data(), .absmax2 = absmax2.data(), .offset = offset};
  }
  nf4_dequantise(run, 0, n, result.data(), threads);
  return result;
}

}  // namespace fivefold
