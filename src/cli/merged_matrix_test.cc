#include "cli/merged_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "store/safetensors.h"
#include "store/tensor_values.h"

namespace fivefold {
namespace {

// W = [[1, 2, 3], [4, 5, 6]], A = [[1, 0, 2]], B = [[3], [-1]], scale 2: B A = [[3, 0, 6], [-1, 0, -2]].
TEST(MergedMatrix, AddsTheScaledProduct) {
  std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  merge_into(weight, std::vector<float>{1, 0, 2}, std::vector<float>{3, -1}, {}, 1, 2.0);
  EXPECT_EQ(weight, (std::vector<float>{7, 2, 15, 2, 5, 2}));
}

// W + B A = [[3, 4], [0, -2], [0, 0]]: norms 5, 2 and 0, magnitudes 10, 1 and 7. The row of zeros stays.
TEST(MergedMatrix, ScalesRowsToTheMagnitudesOfDora) {
  std::vector<float> weight = {2, 4, 0, -4, -1, 0};
  merge_into(weight, std::vector<float>{1, 0, 0, 1}, std::vector<float>{1, 0, 0, 2, 1, 0}, std::vector<float>{10, 1, 7},
             2, 1.0);
  EXPECT_EQ(weight, (std::vector<float>{6, 8, 0, -1, 0, 0}));
}

// E83: a merge into the wrong base (unsloth-zoo#810, peft#2321): what an adapter run with a base in NF4 computes,
// y = NF4(W) x + s B A x, against the products with merged matrices.
TEST(MergedMatrix, TheBaseInFourBitsReproducesTheRunAndTheOriginalIsOffByTheQuantisation) {
  constexpr size_t kOut = 48, kIn = 160, kRank = 8;
  constexpr double kScale = 16.0 / kRank;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto values = [&](size_t count, float deviation) {
    std::vector<float> result(count);
    for (float& value : result) value = deviation * normal(random);
    return result;
  };
  const std::vector<float> w = values(kOut * kIn, 0.1f), a = values(kRank * kIn, 0.08f), x = values(kIn, 1);
  const std::vector<float> b = values(kOut * kRank, 0.05f), nf4 = through_nf4(w, true);
  const auto times_x = [&](const std::vector<float>& matrix, size_t o) {
    double sum = 0;
    for (size_t i = 0; i < kIn; ++i) sum += static_cast<double>(matrix[o * kIn + i]) * x[i];
    return sum;
  };
  // The result of a merge, stored in bf16.
  const auto merged = [&](std::vector<float> base) {
    merge_into(base, a, b, {}, kRank, kScale);
    return decode_values(DType::kBFloat16, encode_values(base, DType::kBFloat16));
  };
  const std::vector<float> into_nf4 = merged(nf4), into_w = merged(w), again = through_nf4(into_nf4, true);
  double run2 = 0, nf4_error2 = 0, w_error2 = 0, quantisation2 = 0, again_error2 = 0;
  for (size_t o = 0; o < kOut; ++o) {
    double run = times_x(nf4, o);
    for (size_t k = 0; k < kRank; ++k)
      for (size_t i = 0; i < kIn; ++i) run += kScale * b[o * kRank + k] * a[k * kIn + i] * x[i];
    run2 += run * run;
    nf4_error2 += std::pow(times_x(into_nf4, o) - run, 2);
    w_error2 += std::pow(times_x(into_w, o) - run, 2);
    again_error2 += std::pow(times_x(again, o) - run, 2);
    quantisation2 += std::pow(times_x(w, o) - times_x(nf4, o), 2);
  }
  const double off = std::sqrt(w_error2 / run2), quantisation = std::sqrt(quantisation2 / run2);
  RecordProperty("nf4", std::to_string(std::sqrt(nf4_error2 / run2)));
  EXPECT_LT(std::sqrt(nf4_error2 / run2), 1e-2);  // rounding to bf16
  // Off by (W - NF4(W)) x, which is far above rounding.
  EXPECT_GT(quantisation, 0.05);
  EXPECT_NEAR(off, quantisation, 1e-2);
  // Another pass through NF4 costs about as much again.
  EXPECT_GT(std::sqrt(again_error2 / run2), 0.5 * quantisation);
}

// bitsandbytes' values of all linears of a small llama, double quantisation.
TEST(MergedMatrix, FourBitsAreThoseOfBitsandbytes) {
  const char* shared = std::getenv("FIVEFOLD_SHARED");
  const auto oracles = std::filesystem::path(shared != nullptr ? shared : FIVEFOLD_SHARED) / "oracles";
  const auto path = oracles / "11_nf4_qlora" / "case01_dequantised_double.safetensors";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const auto expected = SafetensorsFile::open(path);
  const auto base = SafetensorsFile::open(oracles / "01_llama_gqa_untied" / "model.safetensors");
  ASSERT_TRUE(expected.ok() && base.ok());
  int compared = 0;
  for (const TensorInfo& tensor : expected->tensors()) {
    if (!tensor.name.ends_with("_proj.weight")) continue;
    const TensorInfo* original = base->find(tensor.name);
    ASSERT_NE(original, nullptr) << tensor.name;
    const auto want = decode_values(tensor.dtype, expected->bytes(tensor));
    const auto got = through_nf4(decode_values(original->dtype, base->bytes(*original)), true);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i])) << tensor.name;
    ++compared;
  }
  EXPECT_EQ(compared, 14);
}

}  // namespace
}  // namespace fivefold
