#include "kernels/dynamic_map.h"
#include "kernels/kernel_testing.h"
#include "kernels/optimizer.h"

namespace fivefold::kernels {
namespace {

constexpr int64_t kN = 1000;  // three blocks and one of 232
constexpr size_t kBlocks = 4;

template <class G>
struct Run {
  std::vector<float> param = random_elements<float>(kN, 1);
  std::vector<BFloat16> copy = std::vector<BFloat16>(kN);
  std::vector<uint8_t> m = std::vector<uint8_t>(kN), v = std::vector<uint8_t>(kN);
  std::vector<float> m_absmax = std::vector<float>(kBlocks), v_absmax = std::vector<float>(kBlocks);

  void step(int number, const std::vector<G>& grad, int num_threads) {
    AdamW<G, uint8_t> a;
    a.param = param.data();
    a.param_bf16 = copy.data();
    a.m = m.data();
    a.v = v.data();
    a.m_absmax = m_absmax.data();
    a.v_absmax = v_absmax.data();
    a.grad = grad.data();
    a.n = kN;
    a.grad_scale = 0.5f;
    a.lr = 0.01;
    a.weight_decay = 0.1;
    a.step = number;
    a.num_threads = num_threads;
    adamw_step(a);
  }
};

template <class T>
class Adam8Bit : public ::testing::Test {};
TYPED_TEST_SUITE(Adam8Bit, ElementTypes);

// In fp64 from the decoded states; the states afterwards are the nearest codes of the new moments.
TYPED_TEST(Adam8Bit, StepsFromDecodedStatesAndStoresTheNearestCodes) {
  Run<TypeParam> run;
  const auto& map_m = dynamic_map(DynamicMapKind::kSigned);
  const auto& map_v = dynamic_map(DynamicMapKind::kUnsigned);
  for (int step = 1; step <= 3; ++step) {
    const Run<TypeParam> before = run;
    const auto grad = random_elements<TypeParam>(kN, static_cast<uint64_t>(20 + step));
    run.step(step, grad, 1);
    for (size_t i = 0; i < kN; ++i) {
      const double g = 0.5 * static_cast<double>(to_float(grad[i]));
      const double m = 0.9 * map_m[before.m[i]] * before.m_absmax[i / 256] + 0.1 * g;
      const double v = 0.999 * map_v[before.v[i]] * before.v_absmax[i / 256] + 0.001 * g * g;
      const double update = m / (1 - std::pow(0.9, step)) / (std::sqrt(v / (1 - std::pow(0.999, step))) + 1e-8);
      ASSERT_NEAR(run.param[i], before.param[i] * (1 - 0.001) - 0.01 * update, 1e-6) << step << " element " << i;
      ASSERT_EQ(run.copy[i].bits, from_float<BFloat16>(run.param[i]).bits);
      // Half a part of the last decade of the signed map is 0.9 / 128 of the maximum.
      ASSERT_NEAR(map_m[run.m[i]] * run.m_absmax[i / 256], m, run.m_absmax[i / 256] * 0.9 / 128 * 1.001);
      ASSERT_NEAR(map_v[run.v[i]] * run.v_absmax[i / 256], v, run.v_absmax[i / 256] * 0.9 / 256 * 1.001);
    }
  }
}

TYPED_TEST(Adam8Bit, ThreadsChangeNoBit) {
  const auto grad = random_elements<TypeParam>(kN, 3);
  expect_same_bits_for_any_threads([&](int num_threads) {
    Run<TypeParam> run;
    for (int step = 1; step <= 2; ++step) run.step(step, grad, num_threads);
    return bytes_of(run.param, run.copy, run.m, run.v, run.m_absmax, run.v_absmax);
  });
}

// Rounded to nearest after steps that are those of fp32 states as long as a state holds what it was given.
TEST(AdamWInBf16, StoresMomentsRoundedToNearest) {
  constexpr size_t kFew = 64;
  const auto grad = random_elements<float>(kFew, 8);
  std::vector<float> param(kFew, 1.0f), exact(kFew, 1.0f), m32(kFew), v32(kFew);
  std::vector<BFloat16> m(kFew), v(kFew);
  AdamW<float, BFloat16> narrow{
      .param = param.data(), .m = m.data(), .v = v.data(), .grad = grad.data(), .n = kFew, .lr = 0.01, .step = 1};
  AdamW<float> wide{
      .param = exact.data(), .m = m32.data(), .v = v32.data(), .grad = grad.data(), .n = kFew, .lr = 0.01, .step = 1};
  adamw_step(narrow);
  adamw_step(wide);
  EXPECT_EQ(param, exact);  // the first step uses the moments before they are rounded
  for (size_t i = 0; i < kFew; ++i) {
    EXPECT_EQ(m[i].bits, from_float<BFloat16>(m32[i]).bits);
    EXPECT_EQ(v[i].bits, from_float<BFloat16>(v32[i]).bits);
  }
}

}  // namespace
}  // namespace fivefold::kernels
