#include "kernels/dynamic_map.h"

#include "kernels/kernel_testing.h"

namespace fivefold::kernels {
namespace {

// Decade 0 of the signed map is one value, the middle of [1e-7, 1e-6]; of the unsigned two, the middles of its halves.
// The last decade starts with 0.1 plus half a part: 0.9 / 64 and 0.9 / 128 wide.
TEST(DynamicMap, HoldsTheMiddlesOfEvenPartsOfSevenDecades) {
  const auto& is_signed = dynamic_map(DynamicMapKind::kSigned);
  EXPECT_EQ(is_signed[127], 0.0f);
  EXPECT_NEAR(is_signed[128], 5.5e-7, 1e-13);
  EXPECT_NEAR(is_signed[126], -5.5e-7, 1e-13);
  EXPECT_NEAR(is_signed[255 - 64], 0.1 + 0.9 / 128, 1e-7);
  EXPECT_NEAR(is_signed[254], 1 - 0.9 / 128, 1e-7);
  EXPECT_EQ(is_signed[255], 1.0f);
  EXPECT_EQ(is_signed[0], -is_signed[254]);
  const auto& is_unsigned = dynamic_map(DynamicMapKind::kUnsigned);
  EXPECT_EQ(is_unsigned[0], 0.0f);
  EXPECT_NEAR(is_unsigned[1], 3.25e-7, 1e-13);
  EXPECT_NEAR(is_unsigned[2], 7.75e-7, 1e-13);
  EXPECT_NEAR(is_unsigned[254], 1 - 0.9 / 256, 1e-7);
  EXPECT_EQ(is_unsigned[255], 1.0f);
}

// Every midpoint with its neighbours, every value, and numbers of all magnitudes down to where all is 0.
std::vector<float> probes(DynamicMapKind kind) {
  const auto& map = dynamic_map(kind);
  std::vector<float> x{0.0f, -0.0f, 1.0f, 1e-8f, 1.2e-7f, 1e-38f, 1e-44f};
  for (size_t c = 0; c + 1 < map.size(); ++c) {
    const float middle = (map[c] + map[c + 1]) / 2;
    for (const float value : {map[c], middle, std::nextafter(middle, 2.0f), std::nextafter(middle, -2.0f)})
      x.push_back(value);
  }
  std::mt19937_64 generator(5);
  for (int i = 0; i < 20000; ++i) {
    const double uniform = static_cast<double>(generator() >> 11) * 0x1p-53;
    const double sign = kind == DynamicMapKind::kSigned && i % 2 == 0 ? -1 : 1;
    x.push_back(static_cast<float>(sign * std::pow(10.0, -9 * uniform)));
  }
  return x;
}

TEST(DynamicMap, CodesAreNearest) {
  for (const DynamicMapKind kind : {DynamicMapKind::kSigned, DynamicMapKind::kUnsigned}) {
    const auto& map = dynamic_map(kind);
    std::vector<float> x = probes(kind);
    x.push_back(1.0f);  // so that absmax is 1
    std::vector<uint8_t> codes(x.size());
    float absmax = 0;
    dynamic_quantise(kind, x.data(), static_cast<int64_t>(x.size()), static_cast<int64_t>(x.size()), codes.data(),
                     &absmax, 1);
    ASSERT_EQ(absmax, 1.0f);
    for (size_t i = 0; i < x.size(); ++i) {
      double least = 2;
      for (const float value : map) least = std::min(least, std::abs(static_cast<double>(value) - x[i]));
      const double distance = std::abs(static_cast<double>(map[codes[i]]) - x[i]);
      // The midpoint of two fp32 numbers is itself rounded.
      ASSERT_LE(distance, least + 1.2e-7 * std::abs(x[i])) << x[i] << " got " << map[codes[i]];
    }
  }
}

TEST(DynamicMap, BlocksHaveTheirOwnScaleAndMayBeZeroOrPartial) {
  std::vector<float> x(600, 0.0f);
  for (size_t i = 0; i < 256; ++i) x[i] = static_cast<float>(i) - 128.0f;
  x[599] = 1e-30f;  // third block: 88 elements
  const auto run = [&](int num_threads) {
    std::vector<uint8_t> codes(600);
    std::vector<float> absmax(3), back(600);
    dynamic_quantise(DynamicMapKind::kSigned, x.data(), 600, 256, codes.data(), absmax.data(), num_threads);
    dynamic_dequantise(DynamicMapKind::kSigned, codes.data(), absmax.data(), 600, 256, back.data(), num_threads);
    EXPECT_EQ(absmax, (std::vector<float>{128.0f, 0.0f, 1e-30f}));
    // A part of the last decade is 0.9 / 64 of the maximum wide.
    for (size_t i = 0; i < 256; ++i) EXPECT_NEAR(back[i], x[i], 128 * 0.9 / 128 + 1e-4) << i;
    for (size_t i = 256; i < 512; ++i) EXPECT_EQ(codes[i], 127) << i;
    EXPECT_EQ(back[598], 0.0f);
    EXPECT_EQ(back[599], 1e-30f);
    return bytes_of(codes, absmax, back);
  };
  expect_same_bits_for_any_threads(run);
}

}  // namespace
}  // namespace fivefold::kernels
