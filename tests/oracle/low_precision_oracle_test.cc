// The contract of bf16 and fp16 against the fp32 reference: under every data-parallel layout the error of each tensor's
// gradient is at most twice that of one rank in the same type, with a floor of 1e-3 of the gradient norm; and after 20
// AdamW steps all replicas hold the same bits, in both and in fp32.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

const char* const kCases[] = {
    "01_llama_gqa_untied", "02_llama_mha_tied_vocab131", "03_qwen3_qknorm_headdim", "04_qwen2_qkv_bias", "05_gpt2",
    "08_llama_seq128",     "09_packed_documents",        "16_llama_rope_llama3"};

std::vector<Layout> layouts(const std::string& compute) {
  std::vector<Layout> all;
  for (const int zero : {0, 1, 2, 3}) {
    for (const int dp : {1, 2, 4}) {
      all.push_back({.dp = dp, .zero = zero, .micro = 4 / dp, .compute = compute});
      all.push_back({.dp = dp, .zero = zero, .micro = 1, .accumulation = 2, .compute = compute});
    }
    if (zero > 0) all.push_back({.dp = 4, .zero = zero, .shard_size = 2, .micro = 1, .compute = compute});
  }
  for (const bool sp : {false, true})
    all.push_back({.dp = 2, .zero = 2, .micro = 2, .compute = compute, .tp = 2, .sp = sp});
  for (const char* kind : {"ring", "all_gather", "ulysses"})
    all.push_back({.dp = 1, .zero = 1, .micro = 1, .accumulation = 4, .compute = compute, .cp = 2, .cp_kind = kind});
  for (const char* schedule : {"1f1b", "zb1p"})
    all.push_back(
        {.dp = 2, .zero = 1, .micro = 1, .accumulation = 2, .compute = compute, .pp = 2, .schedule = schedule});
  return all;
}

class LowPrecisionOracle : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(oracle_folder() / GetParam()))
      GTEST_SKIP() << "no reference cases at " << oracle_folder();
    reference_ = read_reference(oracle_folder() / GetParam()).value();
  }

  // ||gradient - reference|| by tensor.
  std::map<std::string, double> errors(const ProbeResult& result) const {
    std::map<std::string, double> all;
    for (const NamedTensor& gradient : result.gradients) {
      const std::vector<float>& right = reference_.gradients.at(gradient.name).values;
      double sum = 0;
      for (size_t i = 0; i < right.size(); ++i) sum += std::pow(static_cast<double>(gradient.values[i]) - right[i], 2);
      all[gradient.name] = std::sqrt(sum);
    }
    return all;
  }
  Reference reference_;
};

TEST_P(LowPrecisionOracle, GradientErrorIsAtMostTwiceThatOfOneRank) {
  for (const std::string compute : {"bf16", "fp16"}) {
    const Layout alone{.micro = static_cast<int>(reference_.batch.rows), .compute = compute};
    const ProbeResult single = probe(probe_request(reference_, alone, {}));
    const auto one = errors(single);
    // A loss of cross-entropy errs as the logits do, which are about as large and have 8 or 11 bits.
    EXPECT_NEAR(single.loss / reference_.loss, 1, compute == "bf16" ? 0x1p-8 : 0x1p-11);
    double worst = 0;
    for (const Layout& layout : layouts(compute)) {
      SCOPED_TRACE(layout.name());
      for (const auto& [name, error] : errors(probe(probe_request(reference_, layout, {})))) {
        const double allowed = std::max(2 * one.at(name), 1e-3 * reference_.grad_norm);
        EXPECT_LE(error, allowed) << name;
        worst = std::max(worst, error / allowed);
      }
    }
    std::printf("%s: largest error: %.2g of what is allowed\n", compute.c_str(), worst);
  }
}

TEST_P(LowPrecisionOracle, ReplicasHoldTheSameBitsAfterTwentySteps) {
  for (const std::string compute : {"fp32", "bf16", "fp16"}) {
    for (const Layout& layout :
         {Layout{.dp = 2, .zero = 0, .micro = 1, .accumulation = 2}, Layout{.dp = 4, .zero = 1},
          Layout{.dp = 4, .zero = 2}, Layout{.dp = 4, .zero = 3}, Layout{.dp = 4, .zero = 2, .shard_size = 2},
          Layout{.dp = 4, .zero = 3, .shard_size = 1}}) {
      Layout typed = layout;
      typed.compute = compute;
      SCOPED_TRACE(typed.name());
      ProbeRequest request = probe_request(reference_, typed, {"optimizer.lr=2e-3"});
      request.updates = 20;
      const ProbeResult result = probe(request);
      EXPECT_LT(result.losses.back(), 0.9 * result.loss);
      for (const uint64_t hash : result.parameter_hashes) EXPECT_EQ(hash, result.parameter_hashes[0]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LowPrecisionOracle, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string("c") + info.param; });

}  // namespace
}  // namespace fivefold::testing
