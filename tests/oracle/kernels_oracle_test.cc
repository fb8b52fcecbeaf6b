// The quantising kernels against what public libraries computed: NF4 and 8-bit Adam (bitsandbytes), fp8 casts (torch).
// Without Torch; skipped where the reference files are not.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/dynamic_map.h"
#include "kernels/fp8.h"
#include "kernels/nf4.h"
#include "kernels/optimizer.h"
#include "store/safetensors.h"
#include "support/reference_run.h"

namespace fivefold::testing {
namespace {

using kernels::BFloat16;

class KernelsOracle : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(oracle_folder() / "11_nf4_qlora"))
      GTEST_SKIP() << "no reference cases at " << oracle_folder();
  }

  void open(const std::string& path) {
    auto file = SafetensorsFile::open(oracle_folder() / path);
    ASSERT_TRUE(file.ok());
    file_ = std::make_unique<SafetensorsFile>(std::move(file).value());
  }

  template <class T>
  std::vector<T> read(const std::string& name) const {
    const TensorInfo* info = file_->find(name);
    FIVEFOLD_CHECK(info != nullptr, name + " is not in " + file_->path().string());
    const auto bytes = file_->bytes(*info);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> floats(const std::string& name) const { return read<float>(name); }
  std::vector<uint8_t> codes(const std::string& name) const { return read<uint8_t>(name); }

  std::unique_ptr<SafetensorsFile> file_;
};

// Same bits, NaN included.
void expect_same_floats(const std::vector<float>& actual, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
        << what << " element " << i << ": " << actual[i] << ", expected " << expected[i];
  }
}

// Largest |a - b|.
double largest_distance(const std::vector<float>& a, const std::vector<float>& b) {
  FIVEFOLD_CHECK(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

// Codes that differ; none by more than one step.
int64_t one_step_differences(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, const std::string& what) {
  EXPECT_EQ(a.size(), b.size()) << what;
  int64_t differences = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    EXPECT_LE(std::abs(a[i] - b[i]), 1) << what << " element " << i;
    differences += a[i] != b[i];
  }
  return differences;
}

// ---- 11: NF4 ----

const char* const kMatrices[] = {"a_8x64", "b_48x96_blocks_cross_rows", "c_7x37_odd_count", "d_64x320_outliers",
                                 "e_special"};

TEST_F(KernelsOracle, Nf4TableAndSingleQuantisation) {
  open("11_nf4_qlora/nf4.safetensors");
  expect_same_floats({kernels::kNf4Values.begin(), kernels::kNf4Values.end()}, floats("nf4_code"), "table");
  for (const std::string name : kMatrices) {
    const std::vector<float> weight = floats(name + ".weight");
    const auto n = static_cast<int64_t>(weight.size());
    std::vector<float> absmax(static_cast<size_t>(kernels::nf4_blocks(0, n)));
    std::vector<uint8_t> packed(static_cast<size_t>(kernels::nf4_code_bytes(n)));
    kernels::nf4_absmax(weight.data(), n, absmax.data(), 2);
    kernels::nf4_quantise(weight.data(), 0, n, absmax.data(), packed.data(), 2);
    expect_same_floats(absmax, floats(name + ".single.absmax"), name + " absmax");
    // An odd count: the library leaves in the spare nibble what it likes.
    std::vector<uint8_t> expected = codes(name + ".single.packed");
    if (n % 2 != 0) expected.back() &= 0xf0;
    EXPECT_EQ(packed, expected) << name;
    std::vector<float> values(weight.size());
    kernels::nf4_dequantise({packed.data(), {.absmax = absmax.data()}, 0, n}, 0, n, values.data(), 2);
    expect_same_floats(values, floats(name + ".single.dequantised"), name + " values");
  }
}

TEST_F(KernelsOracle, Nf4DoubleQuantisation) {
  open("11_nf4_qlora/nf4.safetensors");
  for (const std::string name : kMatrices) {
    const std::vector<float> absmax = floats(name + ".single.absmax");
    const auto blocks = static_cast<int64_t>(absmax.size());
    std::vector<uint8_t> absmax_codes(absmax.size());
    std::vector<float> absmax2(static_cast<size_t>(div_ceil(blocks, kernels::kNf4ScaleGroup)));
    const float offset = kernels::nf4_double_quantise(absmax.data(), blocks, absmax_codes.data(), absmax2.data(), 2);
    // The mean is a sum over up to 320 numbers, which the library takes in fp32.
    const float right_offset = floats(name + ".double.offset")[0];
    EXPECT_NEAR(offset, right_offset, 2e-7f * right_offset) << name;
    EXPECT_EQ(absmax_codes, codes(name + ".double.absmax_codes")) << name;
    EXPECT_LT(largest_distance(absmax2, floats(name + ".double.absmax2")), 3e-7 * std::max(1.0f, absmax2[0])) << name;

    // From the library's own numbers: the same bits.
    const auto right_codes = codes(name + ".double.absmax_codes");
    const auto right_absmax2 = floats(name + ".double.absmax2");
    const kernels::Nf4Scales scales{
        .absmax_codes = right_codes.data(), .absmax2 = right_absmax2.data(), .offset = right_offset};
    std::vector<float> restored(absmax.size());
    kernels::nf4_restore_absmax(scales, 0, blocks, restored.data());
    expect_same_floats(restored, floats(name + ".double.absmax_restored"), name + " absmax");
    const auto packed = codes(name + ".double.packed");
    const std::vector<float> expected = floats(name + ".double.dequantised");
    const auto n = static_cast<int64_t>(expected.size());
    std::vector<float> values(expected.size());
    kernels::nf4_dequantise({packed.data(), scales, 0, n}, 0, n, values.data(), 2);
    expect_same_floats(values, expected, name + " values");
  }
}

// ---- 12: dynamic maps and 8-bit Adam ----

TEST_F(KernelsOracle, DynamicMaps) {
  open("12_adam8bit/quantise.safetensors");
  for (const auto kind : {kernels::DynamicMapKind::kSigned, kernels::DynamicMapKind::kUnsigned}) {
    const std::string tag = kind == kernels::DynamicMapKind::kSigned ? "signed" : "unsigned";
    const auto& map = kernels::dynamic_map(kind);
    expect_same_floats({map.begin(), map.end()}, floats("map_" + tag), tag);
    for (const std::string vector :
         {"normal_1000", "wide_range_700", "zeros_then_one_300", "all_zero_256", "ties_512"}) {
      const std::string name = vector + "." + tag;
      const std::vector<float> x = floats(name + ".x");
      const auto n = static_cast<int64_t>(x.size());
      std::vector<uint8_t> actual(x.size());
      std::vector<float> absmax(static_cast<size_t>(div_ceil(n, 256))), values(x.size());
      kernels::dynamic_quantise(kind, x.data(), n, 256, actual.data(), absmax.data(), 2);
      expect_same_floats(absmax, floats(name + ".absmax"), name + " absmax");
      const int64_t differences = one_step_differences(actual, codes(name + ".codes"), name);
      // Ties depend on how the distance to either neighbour is rounded.
      EXPECT_LE(differences, vector == "ties_512" ? 512 : 0) << name;
      const std::vector<uint8_t> right = codes(name + ".codes");
      kernels::dynamic_dequantise(kind, right.data(), absmax.data(), n, 256, values.data(), 2);
      expect_same_floats(values, floats(name + ".dequantised"), name + " values");
    }
  }
}

struct States {
  std::vector<uint8_t> m, v;
  std::vector<float> m_absmax, v_absmax;

  explicit States(size_t n) : m(n), v(n), m_absmax((n + 255) / 256), v_absmax((n + 255) / 256) {}
};

kernels::AdamW<float, uint8_t> adamw8(std::vector<float>& param, States& states, const std::vector<float>& grad) {
  kernels::AdamW<float, uint8_t> a;
  a.param = param.data();
  a.m = states.m.data();
  a.v = states.v.data();
  a.m_absmax = states.m_absmax.data();
  a.v_absmax = states.v_absmax.data();
  a.grad = grad.data();
  a.n = static_cast<int64_t>(param.size());
  a.lr = 0.01;
  a.num_threads = 2;
  return a;
}

TEST_F(KernelsOracle, Adam8BitTrace) {
  open("12_adam8bit/trace.safetensors");
  for (const auto& [run, decay] : {std::pair<std::string, double>{"adam8bit_wd0", 0.0}, {"adamw8bit_wd0.1", 0.1}}) {
    std::vector<float> param = floats("big.p0");
    States states(param.size());
    int64_t differences = 0;
    double worst = 0;
    for (int step = 1; step <= 5; ++step) {
      const std::string number = std::to_string(step);
      const std::vector<float> grad = floats("big.grad" + number);
      auto args = adamw8(param, states, grad);
      args.weight_decay = decay;
      args.step = step;
      kernels::adamw_step(args);
      worst = std::max(worst, largest_distance(param, floats(run + ".big.p" + number)));
      const std::string big = run + ".big.";
      differences += one_step_differences(states.m, codes(big + "state1." + number), run + " m " + number);
      differences += one_step_differences(states.v, codes(big + "state2." + number), run + " v " + number);
      EXPECT_LT(largest_distance(states.m_absmax, floats(big + "absmax1." + number)), 1e-6) << run << " " << step;
      EXPECT_LT(largest_distance(states.v_absmax, floats(big + "absmax2." + number)), 1e-6) << run << " " << step;
    }
    std::printf("%s: %lld of 44000 codes differ by one step, parameters by %.2g\n", run.c_str(),
                static_cast<long long>(differences), worst);
    // A code on the edge falls either way by the last bit of a moment, and moves its parameter by up to a code's width.
    EXPECT_LE(differences, 4) << run;
    EXPECT_LT(worst, differences == 0 ? 1e-6 : 1e-3) << run;
  }
}

TEST_F(KernelsOracle, SmallTensorsOf8BitAdamTakeFp32Steps) {
  open("12_adam8bit/trace.safetensors");
  std::vector<float> param = floats("small.p0"), m(param.size()), v(param.size());
  for (int step = 1; step <= 5; ++step) {
    const std::vector<float> grad = floats("small.grad" + std::to_string(step));
    kernels::AdamW<float> args{.param = param.data(), .m = m.data(), .v = v.data(), .grad = grad.data()};
    args.n = static_cast<int64_t>(param.size());
    args.lr = 0.01;
    args.weight_decay = 0.1;
    args.step = step;
    kernels::adamw_step(args);
    EXPECT_LT(largest_distance(param, floats("adamw8bit_wd0.1.small.p" + std::to_string(step))), 1e-6) << step;
  }
}

// Second moments of code 0 and a step without gradient: the jump belongs to the algorithm.
TEST_F(KernelsOracle, HazardOfSecondMomentsThatRoundToZero) {
  open("12_adam8bit/hazard.safetensors");
  std::vector<float> param(512);
  States states(512);
  for (int step = 1; step <= 4; ++step) {
    const std::string number = std::to_string(step);
    const std::vector<float> grad = floats("grad" + number), expected = floats("p" + number);
    auto args = adamw8(param, states, grad);
    args.step = step;
    kernels::adamw_step(args);
    for (size_t i = 0; i < param.size(); ++i)
      EXPECT_NEAR(param[i], expected[i], 1e-5 * std::max(1.0f, std::abs(expected[i]))) << step << " element " << i;
    EXPECT_EQ(states.m, codes("state1." + number)) << step;
    EXPECT_EQ(states.v, codes("state2." + number)) << step;
  }
  float largest = 0;
  for (const float p : param) largest = std::max(largest, std::abs(p));
  EXPECT_NEAR(largest, 255.97f, 0.01f);
}

// ---- 13: fp8 ----

TEST_F(KernelsOracle, Fp8CastsAndDecoding) {
  using kernels::Fp8Format;
  using kernels::Fp8Overflow;
  open("13_fp8/cast.safetensors");
  const std::vector<float> input = floats("input");
  const auto n = static_cast<int64_t>(input.size());
  std::vector<uint8_t> all(256);
  for (size_t c = 0; c < 256; ++c) all[c] = static_cast<uint8_t>(c);
  for (const Fp8Format format : {Fp8Format::kE4M3, Fp8Format::kE5M2}) {
    const std::string tag = format == Fp8Format::kE4M3 ? "e4m3fn" : "e5m2";
    std::vector<uint8_t> actual(input.size());
    kernels::fp8_quantise(input.data(), n, 1.0f, format, Fp8Overflow::kSaturate, actual.data(), 2);
    EXPECT_EQ(actual, codes("saturated." + tag)) << tag;
    kernels::fp8_quantise(input.data(), n, 1.0f, format, Fp8Overflow::kInfinity, actual.data(), 2);
    EXPECT_EQ(actual, codes("torch_cast." + tag)) << tag;
    const std::vector<float> right = floats("decode." + tag);
    std::vector<float> values(256);
    kernels::fp8_dequantise(all.data(), 256, 1.0f, format, values.data(), 1);
    std::vector<BFloat16> narrow(256);
    kernels::fp8_dequantise(all.data(), 256, 1.0f, format, narrow.data(), 1);
    for (size_t c = 0; c < 256; ++c) {
      if (std::isnan(right[c])) {
        EXPECT_TRUE(std::isnan(values[c]) && std::isnan(kernels::to_float(narrow[c]))) << tag << " code " << c;
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(values[c]), std::bit_cast<uint32_t>(right[c])) << tag << " code " << c;
        EXPECT_EQ(kernels::to_float(narrow[c]), right[c]) << tag << " code " << c;
      }
    }
  }
}

TEST_F(KernelsOracle, Fp8Tensorwise) {
  using kernels::Fp8Format;
  open("13_fp8/linear_tensorwise.safetensors");
  const std::vector<float> inverse = floats("inv_scales_x_w_gy");
  const std::pair<std::string, Fp8Format> tensors[] = {
      {"x", Fp8Format::kE4M3}, {"w", Fp8Format::kE4M3}, {"gy", Fp8Format::kE5M2}};
  for (size_t t = 0; t < 3; ++t) {
    const auto& [name, format] = tensors[t];
    const std::vector<float> x = floats(name);
    const auto n = static_cast<int64_t>(x.size());
    const float scale = kernels::fp8_scale(kernels::fp8_amax(x.data(), n, 2), format, kernels::Fp8ScaleKind::kFloat32);
    EXPECT_EQ(1.0f / scale, inverse[t]) << name;
    std::vector<uint8_t> actual(x.size());
    kernels::fp8_quantise(x.data(), n, scale, format, kernels::Fp8Overflow::kSaturate, actual.data(), 2);
    EXPECT_EQ(actual, codes(name + ".codes")) << name;
  }
}

std::vector<float> transposed(const std::vector<float>& x, int64_t rows, int64_t cols) {
  std::vector<float> result(x.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) result[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * cols + c)];
  return result;
}

TEST_F(KernelsOracle, Fp8Blockwise) {
  using kernels::Fp8Blocks;
  using kernels::Fp8ScaleKind;
  open("13_fp8/linear_blockwise.safetensors");
  constexpr int64_t kM = 136, kK = 144, kN = 136;
  const std::vector<float> x = floats("x"), w = floats("w"), gy = floats("gy");
  struct Part {
    std::string name;
    std::vector<float> values;
    Fp8Blocks blocks;
  };
  const Part parts[] = {{"x_rows", x, {kM, kK, 1, 128}},
                        {"w", w, {kN, kK, 128, 128}},
                        {"gy_rows", gy, {kM, kN, 1, 128}},
                        {"xT_rows", transposed(x, kM, kK), {kK, kM, 1, 128}},
                        {"gyT_rows", transposed(gy, kM, kN), {kN, kM, 1, 128}}};
  for (const auto& [tag, kind] : {std::pair<std::string, Fp8ScaleKind>{"fp32_scales.", Fp8ScaleKind::kFloat32},
                                  {"pow2_scales.", Fp8ScaleKind::kPowerOfTwo}}) {
    for (const Part& part : parts) {
      std::vector<uint8_t> actual(part.values.size());
      std::vector<float> inverse(static_cast<size_t>(part.blocks.count())), values(part.values.size());
      kernels::fp8_quantise_blocks(part.values.data(), part.blocks, kernels::Fp8Format::kE4M3, kind, actual.data(),
                                   inverse.data(), 2);
      const std::string name = tag + part.name;
      EXPECT_EQ(actual, codes(name + ".codes")) << name;
      expect_same_floats(inverse, floats(name + ".inv_scale"), name + " scales");
      // Three digits: the value is within 2^-4 of itself, or half the smallest step of its block.
      kernels::fp8_dequantise_blocks(actual.data(), inverse.data(), part.blocks, kernels::Fp8Format::kE4M3,
                                     values.data(), 2);
      for (size_t i = 0; i < values.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        const int64_t block = at / part.blocks.cols / part.blocks.block_rows * part.blocks.across() +
                              at % part.blocks.cols / part.blocks.block_cols;
        EXPECT_LE(std::abs(values[i] - part.values[i]),
                  std::max(0x1p-4f * std::abs(part.values[i]), 0x1p-10f * inverse[static_cast<size_t>(block)]) * 1.001f)
            << name << " element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace fivefold::testing
