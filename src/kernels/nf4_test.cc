#include "kernels/nf4.h"

#include "kernels/kernel_testing.h"
#include "kernels/nf4_expand.h"

namespace fivefold::kernels {
namespace {

// A whole tensor in both forms of scales.
struct Whole {
  int64_t n;
  std::vector<float> weight, absmax, absmax2;
  std::vector<uint8_t> codes, absmax_codes;
  float offset;

  explicit Whole(int64_t count, uint64_t seed = 3)
      : n(count),
        weight(random_elements<float>(count, seed)),
        absmax(static_cast<size_t>(nf4_blocks(0, count))),
        absmax2(static_cast<size_t>(nf4_scale_groups(0, count))),
        codes(static_cast<size_t>(nf4_code_bytes(count))),
        absmax_codes(absmax.size()) {
    nf4_absmax(weight.data(), n, absmax.data(), 1);
    nf4_quantise(weight.data(), 0, n, absmax.data(), codes.data(), 1);
    offset =
        nf4_double_quantise(absmax.data(), static_cast<int64_t>(absmax.size()), absmax_codes.data(), absmax2.data(), 1);
  }
  Nf4Scales scales(bool twice, int64_t first) const {
    const int64_t block = first / kNf4Block;
    if (!twice) return {.absmax = absmax.data() + block};
    return {.absmax_codes = absmax_codes.data() + block,
            .absmax2 = absmax2.data() + block / kNf4ScaleGroup,
            .offset = offset};
  }
  template <class T>
  std::vector<T> values(bool twice) const {
    std::vector<T> out(static_cast<size_t>(n));
    nf4_dequantise({codes.data(), scales(twice, 0), 0, n}, 0, n, out.data(), 2);
    return out;
  }
};

// Eight elements by hand: absmax 2, so 2, -2, 0, 0.9 and 0.1 are 1, -1, 0, 0.45 and 0.05 of it. 0.45 is nearest to code
// 12 (0.4407), 0.05 to code 8 (0.0796, midpoint 0.0398), -0.13 to code 5 (-0.1848, midpoint -0.1379 to code 6: above,
// so 6).
TEST(Nf4, CodesByHand) {
  const std::vector<float> x = {2.0f, -2.0f, 0.0f, 0.9f, 0.1f, -0.26f, -0.28f};
  std::vector<float> absmax(1);
  nf4_absmax(x.data(), 7, absmax.data(), 1);
  EXPECT_EQ(absmax[0], 2.0f);
  std::vector<uint8_t> codes(4);
  nf4_quantise(x.data(), 0, 7, absmax.data(), codes.data(), 1);
  EXPECT_EQ(codes, (std::vector<uint8_t>{0xf0, 0x7c, 0x86, 0x50}));
  std::vector<float> back(7);
  nf4_dequantise({codes.data(), {.absmax = absmax.data()}, 0, 7}, 0, 7, back.data(), 1);
  EXPECT_EQ(back[0], 2.0f);
  EXPECT_EQ(back[2], 0.0f);
  EXPECT_FLOAT_EQ(back[3], 2 * 0.44070982933f);
}

TEST(Nf4, SizesOfARun) {
  EXPECT_EQ(nf4_blocks(0, 64), 1);
  EXPECT_EQ(nf4_blocks(63, 2), 2);
  EXPECT_EQ(nf4_blocks(64, 65), 2);
  EXPECT_EQ(nf4_blocks(10, 0), 0);
  EXPECT_EQ(nf4_scale_groups(64 * 256 - 1, 2), 2);
  EXPECT_EQ(nf4_code_bytes(7), 4);
}

// Runs that start and end anywhere, over a border of the second level (element 16384), give the whole tensor's bits.
TEST(Nf4, RunsEqualTheWholeTensor) {
  const Whole whole(40000);
  const std::pair<int64_t, int64_t> runs[] = {{0, 40000}, {64, 128},   {0, 1},    {1, 1},     {63, 1},
                                              {63, 2},    {65, 20000}, {100, 3},  {16383, 2}, {16320, 20001},
                                              {7, 39993}, {39999, 1},  {129, 62}, {130, 190}, {5, 16384}};
  for (const auto& [first, count] : runs) {
    SCOPED_TRACE(std::to_string(first) + " + " + std::to_string(count));
    const auto bytes = static_cast<size_t>(nf4_code_bytes(count));
    std::vector<uint8_t> codes(bytes), copied(bytes, 0xff);
    nf4_quantise(whole.weight.data() + first, first, count, whole.absmax.data() + first / kNf4Block, codes.data(), 3);
    nf4_copy_codes(whole.codes.data(), first, count, copied.data());
    EXPECT_EQ(codes, copied);
    for (const bool twice : {false, true}) {
      const std::vector<float> right = whole.values<float>(twice);
      const std::vector<BFloat16> narrow = whole.values<BFloat16>(twice);
      const Nf4Run run{codes.data(), whole.scales(twice, first), first, count};
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, count},
                                       {count / 3, count},
                                       {count / 2, count / 2},
                                       {0, count - count / 4}}) {
        const auto length = static_cast<size_t>(end - begin);
        std::vector<float> values(length);
        std::vector<BFloat16> rounded_values(length);
        nf4_dequantise(run, begin, end, values.data(), 2);
        nf4_dequantise(run, begin, end, rounded_values.data(), 2);
        const auto at = static_cast<std::ptrdiff_t>(first + begin), to = static_cast<std::ptrdiff_t>(first + end);
        EXPECT_EQ(bytes_of(values), bytes_of(std::vector<float>(right.begin() + at, right.begin() + to)));
        EXPECT_EQ(bytes_of(rounded_values), bytes_of(std::vector<BFloat16>(narrow.begin() + at, narrow.begin() + to)));
      }
    }
    std::vector<float> restored(static_cast<size_t>(nf4_blocks(first, count)));
    nf4_restore_absmax(whole.scales(false, first), first, static_cast<int64_t>(restored.size()), restored.data());
    EXPECT_EQ(restored[0], whole.absmax[static_cast<size_t>(first / kNf4Block)]);
  }
}

TEST(Nf4, SixteenBitsAreTheRoundedFloat) {
  const Whole whole(5000);
  const std::vector<float> wide = whole.values<float>(true);
  const std::vector<BFloat16> narrow = whole.values<BFloat16>(true);
  const std::vector<Float16> half = whole.values<Float16>(true);
  for (size_t i = 0; i < wide.size(); ++i) {
    ASSERT_EQ(narrow[i].bits, from_float<BFloat16>(wide[i]).bits) << i;
    ASSERT_EQ(half[i].bits, from_float<Float16>(wide[i]).bits) << i;
  }
}

TEST(Nf4, EveryVariantThatTheProcessorRunsGivesTheSameBits) {
  std::vector<std::string_view> variants = {"baseline"};
  if (instruction_set() != "baseline") variants.push_back("x86-64-v3");
  if (instruction_set() == "x86-64-v4") variants.push_back("x86-64-v4");
  std::vector<uint8_t> codes(32 * 9);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37);
  std::vector<float> absmax = random_elements<float>(9, 4);
  absmax[2] = 0.0f;
  absmax[3] = 1e-40f;
  absmax[4] = std::numeric_limits<float>::infinity();
  absmax[5] = std::numeric_limits<float>::quiet_NaN();
  std::string expected;
  for (const std::string_view variant : variants) {
    std::vector<float> wide(9 * 64);
    std::vector<BFloat16> narrow(9 * 64);
    nf4_expand(codes.data(), absmax.data(), 9, wide.data(), variant);
    nf4_expand(codes.data(), absmax.data(), 9, narrow.data(), variant);
    // Signs of NaN are nobody's business.
    for (float& value : wide) value = std::isnan(value) ? 7.0f : value;
    for (BFloat16& value : narrow) value = std::isnan(to_float(value)) ? BFloat16{7} : value;
    if (expected.empty()) expected = bytes_of(wide, narrow);
    EXPECT_TRUE(bytes_of(wide, narrow) == expected) << variant;
    EXPECT_EQ(wide[64 + 1], kNf4Values[codes[32] & 15] * absmax[1]) << variant;
  }
}

TEST(Nf4, ThreadsChangeNoBit) {
  const std::vector<BFloat16> weight = random_elements<BFloat16>(70001, 9);
  expect_same_bits_for_any_threads([&](int num_threads) {
    std::vector<float> absmax(static_cast<size_t>(nf4_blocks(0, 70001)));
    std::vector<uint8_t> codes(35001);
    std::vector<float> back(70001);
    nf4_absmax(weight.data(), 70001, absmax.data(), num_threads);
    nf4_quantise(weight.data(), 0, 70001, absmax.data(), codes.data(), num_threads);
    nf4_dequantise({codes.data(), {.absmax = absmax.data()}, 0, 70001}, 0, 70001, back.data(), num_threads);
    return bytes_of(absmax, codes, back);
  });
}

}  // namespace
}  // namespace fivefold::kernels
