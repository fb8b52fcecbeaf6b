#include "kernels/fp8.h"

#include <limits>

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

constexpr Fp8Format kFormats[] = {Fp8Format::kE4M3, Fp8Format::kE5M2};

// From the definition: sign, exponent, digits.
double value_of(int code, Fp8Format format) {
  const int digits = format == Fp8Format::kE4M3 ? 3 : 2, bias = format == Fp8Format::kE4M3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> digits, fraction = code & ((1 << digits) - 1);
  const double significand = exponent == 0 ? fraction * std::exp2(-digits) : 1 + fraction * std::exp2(-digits);
  return (code & 0x80 ? -1 : 1) * significand * std::exp2(std::max(exponent, 1) - bias);
}

int largest_code(Fp8Format format) { return format == Fp8Format::kE4M3 ? 0x7e : 0x7b; }

// Every bf16, and the fp32 numbers next to it: nearest value, on a tie the even code.
TEST(Fp8, CastsToTheNearestValueTiesToEven) {
  std::vector<float> x;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0xffffu}) {
      const float value = std::bit_cast<float>(upper << 16 | lower);
      if (std::isfinite(value)) x.push_back(value);
    }
  }
  for (const Fp8Format format : kFormats) {
    std::vector<uint8_t> codes(x.size());
    fp8_quantise(x.data(), static_cast<int64_t>(x.size()), 1.0f, format, Fp8Overflow::kSaturate, codes.data(), 2);
    std::vector<double> magnitudes;
    for (int code = 0; code <= largest_code(format); ++code) magnitudes.push_back(value_of(code, format));
    for (size_t i = 0; i < x.size(); ++i) {
      const double magnitude = std::abs(static_cast<double>(x[i]));
      const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), magnitude);
      auto expected = static_cast<int>(above - magnitudes.begin());
      if (above == magnitudes.end()) {
        expected = largest_code(format);
      } else if (expected > 0) {
        const double up = *above - magnitude, down = magnitude - *(above - 1);
        if (down < up || (down == up && expected % 2 == 1)) --expected;
      }
      ASSERT_EQ(codes[i], expected | (std::signbit(x[i]) ? 0x80 : 0)) << x[i];
    }
  }
}

TEST(Fp8, ScaleOfDegenerateMaxima) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Fp8ScaleKind kind : {Fp8ScaleKind::kFloat32, Fp8ScaleKind::kPowerOfTwo}) {
    EXPECT_EQ(fp8_scale(0.0f, Fp8Format::kE4M3, kind), 1.0f);
    EXPECT_EQ(fp8_scale(infinity, Fp8Format::kE4M3, kind), 1.0f);
    EXPECT_EQ(fp8_scale(std::nanf(""), Fp8Format::kE4M3, kind), 1.0f);
    EXPECT_TRUE(std::isfinite(fp8_scale(1e-45f, Fp8Format::kE5M2, kind)));
  }
  EXPECT_EQ(fp8_scale(7.1f, Fp8Format::kE4M3, Fp8ScaleKind::kPowerOfTwo), 32.0f);  // 448 / 7.1 = 63.1
  EXPECT_EQ(fp8_scale(3.5f, Fp8Format::kE4M3, Fp8ScaleKind::kPowerOfTwo), 128.0f);
}

template <class T>
class Fp8OfType : public ::testing::Test {};
using Fp8SourceTypes = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(Fp8OfType, Fp8SourceTypes);

TYPED_TEST(Fp8OfType, AmaxSeesEveryElementAndNan) {
  auto x = random_elements<TypeParam>(40001, 5);
  x[40000] = from_float<TypeParam>(-9.0f);
  EXPECT_EQ(fp8_amax(x.data(), 40001, 1), 9.0f);
  EXPECT_EQ(fp8_amax(x.data(), 40001, 2), 9.0f);
  EXPECT_EQ(fp8_amax(x.data(), 0, 2), 0.0f);
  x[17] = from_float<TypeParam>(std::nanf(""));
  EXPECT_TRUE(std::isnan(fp8_amax(x.data(), 40001, 2)));
}

// Blocks that do not divide the matrix: each is what the whole-tensor functions give for its elements alone.
TYPED_TEST(Fp8OfType, BlocksAreTensorsOfTheirOwn) {
  constexpr int64_t kRows = 130, kCols = 150;
  const auto x = random_elements<TypeParam>(kRows * kCols, 6);
  for (const auto& [block_rows, block_cols] : {std::pair<int64_t, int64_t>{1, 128}, {128, 128}, {3, 7}}) {
    const Fp8Blocks blocks{kRows, kCols, block_rows, block_cols};
    std::vector<uint8_t> codes(x.size());
    std::vector<float> inverse(static_cast<size_t>(blocks.count()));
    std::vector<TypeParam> back(x.size());
    fp8_quantise_blocks(x.data(), blocks, Fp8Format::kE4M3, Fp8ScaleKind::kFloat32, codes.data(), inverse.data(), 1);
    fp8_dequantise_blocks(codes.data(), inverse.data(), blocks, Fp8Format::kE4M3, back.data(), 1);
    for (int64_t down = 0; down < blocks.down(); ++down) {
      for (int64_t across = 0; across < blocks.across(); ++across) {
        std::vector<TypeParam> part;
        std::vector<uint8_t> part_codes;
        std::vector<TypeParam> part_back;
        for (int64_t r = down * block_rows; r < std::min(kRows, (down + 1) * block_rows); ++r) {
          for (int64_t c = across * block_cols; c < std::min(kCols, (across + 1) * block_cols); ++c) {
            part.push_back(x[static_cast<size_t>(r * kCols + c)]);
            part_codes.push_back(codes[static_cast<size_t>(r * kCols + c)]);
            part_back.push_back(back[static_cast<size_t>(r * kCols + c)]);
          }
        }
        const auto n = static_cast<int64_t>(part.size());
        const float scale = fp8_scale(fp8_amax(part.data(), n, 1), Fp8Format::kE4M3, Fp8ScaleKind::kFloat32);
        ASSERT_EQ(inverse[static_cast<size_t>(down * blocks.across() + across)], 1 / scale);
        std::vector<uint8_t> alone(part.size());
        std::vector<TypeParam> alone_back(part.size());
        fp8_quantise(part.data(), n, scale, Fp8Format::kE4M3, Fp8Overflow::kSaturate, alone.data(), 1);
        fp8_dequantise(alone.data(), n, 1 / scale, Fp8Format::kE4M3, alone_back.data(), 1);
        ASSERT_EQ(alone, part_codes);
        ASSERT_EQ(bytes_of(alone_back), bytes_of(part_back));
      }
    }
  }
}

TYPED_TEST(Fp8OfType, ThreadsChangeNoBit) {
  const auto x = random_elements<TypeParam>(300 * 257, 7);
  expect_same_bits_for_any_threads([&](int num_threads) {
    const Fp8Blocks blocks{300, 257, 128, 128};
    std::vector<uint8_t> codes(x.size()), flat(x.size());
    std::vector<float> inverse(static_cast<size_t>(blocks.count()));
    std::vector<float> back(x.size());
    fp8_quantise_blocks(x.data(), blocks, Fp8Format::kE4M3, Fp8ScaleKind::kPowerOfTwo, codes.data(), inverse.data(),
                        num_threads);
    fp8_quantise(x.data(), static_cast<int64_t>(x.size()), 3.0f, Fp8Format::kE5M2, Fp8Overflow::kInfinity, flat.data(),
                 num_threads);
    fp8_dequantise_blocks(codes.data(), inverse.data(), blocks, Fp8Format::kE4M3, back.data(), num_threads);
    return bytes_of(codes, flat, inverse, back);
  });
}

}  // namespace
}  // namespace fivefold::kernels
