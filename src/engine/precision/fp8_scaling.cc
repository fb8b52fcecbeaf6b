#include "engine/precision/fp8_scaling.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "kernels/fp8.h"

namespace fivefold {

float Fp8History::largest(int linear, Fp8Role role) const {
  float most = 0;
  for (const std::vector<float>& step : past_) most = std::max(most, step[slot(linear, role)]);
  return most;
}

void Fp8History::observe(int linear, Fp8Role role, float amax) {
  float& most = current_[slot(linear, role)];
  most = std::max(most, amax);
}

void Fp8History::end_step() {
  past_.push_back(current_);
  if (static_cast<int64_t>(past_.size()) > steps_) past_.erase(past_.begin());
  std::fill(current_.begin(), current_.end(), 0.0f);
}

std::string Fp8History::to_text() const {
  std::ostringstream text;
  text << std::hexfloat;
  for (const std::vector<float>& step : past_) {
    for (size_t i = 0; i < step.size(); ++i)
      if (step[i] > 0) text << i << ':' << step[i] << ' ';
    text << '\n';
  }
  return text.str();
}

void Fp8History::restore(const std::string& text) {
  past_.clear();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::vector<float>& step = past_.emplace_back(current_.size(), 0.0f);
    std::istringstream entries(line);
    for (std::string entry; entries >> entry;) {
      const size_t colon = entry.find(':');
      const size_t slot = std::stoul(entry.substr(0, colon));
      // A checkpoint of another number of layers was refused before.
      if (colon != std::string::npos && slot < step.size())
        step[slot] = std::strtof(entry.c_str() + colon + 1, nullptr);
    }
  }
}

namespace ops {
namespace {

// Codes exist for a portion at a time.
constexpr int64_t kPortion = int64_t{1} << 20;

at::Tensor codes_of(int64_t count) { return allocate(Account::kWorkspace, {count}, DType::kUint8); }

}  // namespace

float fp8_amax(const at::Tensor& x, int threads) {
  return kernels::fp8_amax(elements<kernels::BFloat16>(x), x.numel(), threads);
}

double fp8_round(const at::Tensor& x, float amax, Fp8Role role, at::Tensor& out, int threads) {
  using kernels::Fp8Format;
  const Fp8Format format = role == Fp8Role::kGradient ? Fp8Format::kE5M2 : Fp8Format::kE4M3;
  const float scale = kernels::fp8_scale(amax, format, kernels::Fp8ScaleKind::kFloat32);
  const auto* from = elements<kernels::BFloat16>(x);
  auto* to = elements<kernels::BFloat16>(out);
  const at::Tensor codes = codes_of(std::min(kPortion, x.numel()));
  auto* bytes = elements<uint8_t>(codes);
  for (int64_t begin = 0; begin < x.numel(); begin += kPortion) {
    const int64_t count = std::min(kPortion, x.numel() - begin);
    kernels::fp8_quantise(from + begin, count, scale, format, kernels::Fp8Overflow::kSaturate, bytes, threads);
    kernels::fp8_dequantise(bytes, count, 1.0f, format, to + begin, threads);
  }
  return 1.0 / static_cast<double>(scale);
}

void fp8_round_blocks(const at::Tensor& x, Fp8Role role, int dim, at::Tensor& out, int threads) {
  const int64_t rows = x.size(0), cols = x.size(1);
  const bool weight = role == Fp8Role::kWeight;
  kernels::Fp8Blocks blocks{.rows = rows,
                            .cols = cols,
                            .block_rows = weight || dim == 0 ? 128 : 1,
                            .block_cols = weight || dim == 1 ? 128 : 1};
  // Bands of whole blocks.
  const int64_t band = std::max<int64_t>(128, div_floor(kPortion, cols * 128) * 128);
  const at::Tensor codes = codes_of(std::min(band, rows) * cols);
  kernels::Fp8Blocks of_band = blocks;
  of_band.rows = std::min(band, rows);
  const at::Tensor scales = allocate(Account::kWorkspace, {of_band.count() * 4}, DType::kUint8);
  auto* inverse = static_cast<float*>(scales.data_ptr());
  for (int64_t row = 0; row < rows; row += band) {
    of_band.rows = std::min(band, rows - row);
    kernels::fp8_quantise_blocks(elements<kernels::BFloat16>(x) + row * cols, of_band, kernels::Fp8Format::kE4M3,
                                 kernels::Fp8ScaleKind::kPowerOfTwo, elements<uint8_t>(codes), inverse, threads);
    kernels::fp8_dequantise_blocks(elements<uint8_t>(codes), inverse, of_band, kernels::Fp8Format::kE4M3,
                                   elements<kernels::BFloat16>(out) + row * cols, threads);
  }
}

}  // namespace ops
}  // namespace fivefold
