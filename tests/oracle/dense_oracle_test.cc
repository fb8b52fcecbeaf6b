// The dense reference cases under data-parallel layouts: loss, every gradient and the pre-clip norm, and the losses and
// parameter norms after SGD, clipped SGD and AdamW updates, at the tolerances that the references state.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/reference_run.h"

namespace fivefold::testing {
namespace {

constexpr double kLossTolerance = 1e-5;         // absolute
constexpr double kGradientTolerance = 2e-5;     // norm of difference / norm, per tensor
constexpr double kNormTolerance = 5e-6;         // relative
constexpr double kUpdatedLossTolerance = 3e-5;  // absolute
constexpr double kParameterTolerance = 5e-6;    // relative, of norms

const char* const kCases[] = {
    "01_llama_gqa_untied", "02_llama_mha_tied_vocab131", "03_qwen3_qknorm_headdim", "04_qwen2_qkv_bias", "05_gpt2",
    "08_llama_seq128",     "09_packed_documents",        "16_llama_rope_llama3"};

// Every way to cut up to four rows over 1, 2 and 4 ranks, at every ZeRO level and HSDP, with and without accumulation
// and recompute. Cases of two rows are padded with rows that have no valid token: ranks without any.
std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int recompute : {0, 1, 2}) {
    for (const int zero : {0, 1, 2, 3}) {
      all.push_back({.dp = 1, .zero = zero, .micro = 4, .accumulation = 1, .recompute_every = recompute});
      all.push_back({.dp = 1, .zero = zero, .micro = 1, .accumulation = 4, .recompute_every = recompute});
      all.push_back({.dp = 2, .zero = zero, .micro = 2, .accumulation = 1, .recompute_every = recompute});
      all.push_back({.dp = 2, .zero = zero, .micro = 1, .accumulation = 2, .recompute_every = recompute});
      all.push_back({.dp = 4, .zero = zero, .micro = 1, .accumulation = 1, .recompute_every = recompute});
      all.push_back({.dp = 4, .zero = zero, .micro = 1, .accumulation = 2, .recompute_every = recompute});
      if (zero > 0) {
        all.push_back(
            {.dp = 4, .zero = zero, .shard_size = 2, .micro = 1, .accumulation = 1, .recompute_every = recompute});
        all.push_back(
            {.dp = 4, .zero = zero, .shard_size = 1, .micro = 1, .accumulation = 2, .recompute_every = recompute});
      }
    }
  }
  // Tensor parallelism, with and without sequence parallelism: more ranks than KV heads, vocabularies and sequences
  // that it does not divide, together with every level.
  for (const bool sp : {false, true}) {
    for (const int zero : {0, 1, 2, 3})
      all.push_back({.dp = 2, .zero = zero, .micro = 2, .recompute_every = zero % 2, .tp = 2, .sp = sp});
    all.push_back({.dp = 1, .zero = 0, .micro = 1, .accumulation = 4, .tp = 4, .sp = sp});
    all.push_back({.dp = 1, .zero = 0, .micro = 4, .recompute_every = 1, .tp = 4, .sp = sp});
    all.push_back({.dp = 4, .zero = 3, .shard_size = 2, .micro = 1, .tp = 2, .sp = sp});
  }
  // Context parallelism of each kind, pipelines, and mixes.
  for (const char* kind : {"ring", "all_gather", "ulysses"}) {
    all.push_back({.dp = 2, .zero = 2, .micro = 2, .cp = 2, .cp_kind = kind});
    all.push_back({.dp = 1, .zero = 3, .micro = 1, .accumulation = 4, .recompute_every = 1, .cp = 4, .cp_kind = kind});
  }
  for (const char* schedule : {"1f1b", "zb1p"}) {
    all.push_back({.dp = 2, .zero = 1, .micro = 1, .accumulation = 2, .pp = 2, .schedule = schedule});
    all.push_back({.dp = 1, .zero = 3, .micro = 1, .accumulation = 4, .pp = 4, .schedule = schedule});
  }
  all.push_back({.dp = 1, .zero = 0, .micro = 1, .accumulation = 4, .pp = 2, .vpp = 2, .schedule = "zbv"});
  all.push_back({.dp = 2, .zero = 2, .micro = 1, .accumulation = 2, .tp = 2, .sp = true, .pp = 2});
  all.push_back({.dp = 1,
                 .zero = 1,
                 .micro = 1,
                 .accumulation = 4,
                 .tp = 2,
                 .pp = 2,
                 .vpp = 2,
                 .schedule = "dualpipev",
                 .cp = 2,
                 .cp_kind = "ring"});
  return all;
}

nlohmann::json expected(const Reference& reference) {
  std::ifstream file(reference.folder / "expected.json");
  return nlohmann::json::parse(file);
}

ProbeResult probe(const ProbeRequest& request) {
  static EngineApi* const engine = load_engine().value();
  return engine->probe(request).value();
}

// Adam turns the rounding noise of gradients that are zero in exact arithmetic into full steps: key biases.
bool noise_under_adam(const std::string& name) {
  return name.ends_with("c_attn.bias") || name.ends_with("k_proj.bias");
}

class DenseOracle : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(oracle_folder() / GetParam()))
      GTEST_SKIP() << "no reference cases at " << oracle_folder();
    reference_ = read_reference(oracle_folder() / GetParam()).value();
  }
  Reference reference_;
};

TEST_P(DenseOracle, GradientsAndSgdUpdatesUnderEveryLayout) {
  const nlohmann::json sgd = expected(reference_)["sgd"];
  double worst_gradient = 0;
  for (const Layout& layout : layouts()) {
    const int64_t heads = reference_.model.layers[0].mixer.num_heads;
    if (heads % layout.tp != 0 || (layout.cp_kind == "ulysses" && heads % layout.cp != 0)) continue;
    SCOPED_TRACE(layout.name());
    ProbeRequest request = probe_request(
        reference_, layout,
        {"optimizer.kind=sgd", "optimizer.lr=" + sgd["lr"].dump(), "optimizer.clip=0", "optimizer.weight_decay=0"});
    request.updates = 3;
    request.want_parameters = true;
    const ProbeResult result = probe(request);
    EXPECT_NEAR(result.loss, reference_.loss, kLossTolerance);
    EXPECT_NEAR(result.grad_norm / reference_.grad_norm, 1, kNormTolerance);
    ASSERT_EQ(result.gradients.size(), reference_.gradients.size());
    for (const NamedTensor& gradient : result.gradients) {
      const NamedTensor& right = reference_.gradients.at(gradient.name);
      ASSERT_EQ(gradient.shape, right.shape) << gradient.name;
      const double difference = relative_difference(gradient.values, right.values);
      // A key bias whose gradient is rounding noise in exact arithmetic has nothing to compare.
      if (reference_.grad_norms.at(gradient.name) < 1e-6) continue;
      EXPECT_LT(difference, kGradientTolerance) << gradient.name;
      worst_gradient = std::max(worst_gradient, difference);
    }
    for (int i = 0; i < 3; ++i) {
      EXPECT_NEAR(result.losses[static_cast<size_t>(i)], sgd["losses"][static_cast<size_t>(i) + 1].get<double>(),
                  kUpdatedLossTolerance);
      EXPECT_NEAR(result.grad_norms[static_cast<size_t>(i)] /
                      sgd["grad_norms_before_clip"][static_cast<size_t>(i)].get<double>(),
                  1, kNormTolerance * 4);
    }
    for (const NamedTensor& parameter : result.parameters) {
      double sum = 0;
      for (const float value : parameter.values) sum += static_cast<double>(value) * value;
      EXPECT_NEAR(std::sqrt(sum) / sgd["param_norms_after"][parameter.name].get<double>(), 1, kParameterTolerance)
          << parameter.name;
    }
    for (const uint64_t hash : result.parameter_hashes) EXPECT_EQ(hash, result.parameter_hashes[0]);
  }
  std::printf("largest gradient difference: %.2g of the tolerance\n", worst_gradient / kGradientTolerance);
}

TEST_P(DenseOracle, ClippingScalesByTheGlobalNorm) {
  const nlohmann::json clipped = expected(reference_)["sgd_clipped"];
  for (const Layout& layout : {Layout{.dp = 1, .zero = 0, .micro = 4}, Layout{.dp = 2, .zero = 2, .micro = 2},
                               Layout{.dp = 4, .zero = 3, .shard_size = 2, .micro = 1}}) {
    SCOPED_TRACE(layout.name());
    ProbeRequest request = probe_request(reference_, layout,
                                         {"optimizer.kind=sgd", "optimizer.lr=" + clipped["lr"].dump(),
                                          "optimizer.clip=" + clipped["clip"].dump(), "optimizer.weight_decay=0"});
    request.updates = 3;
    const ProbeResult result = probe(request);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(result.losses[i], clipped["losses"][i + 1].get<double>(), kUpdatedLossTolerance);
  }
}

TEST_P(DenseOracle, AdamWUpdates) {
  const nlohmann::json adamw = expected(reference_)["adamw"];
  for (const Layout& layout : {Layout{.dp = 1, .zero = 0, .micro = 4}, Layout{.dp = 2, .zero = 1, .micro = 2},
                               Layout{.dp = 2, .zero = 2, .micro = 1, .accumulation = 2},
                               Layout{.dp = 4, .zero = 3, .micro = 1, .recompute_every = 1}}) {
    SCOPED_TRACE(layout.name());
    ProbeRequest request =
        probe_request(reference_, layout,
                      {"optimizer.kind=adamw", "optimizer.lr=" + adamw["lr"].dump(), "optimizer.betas=[0.9, 0.95]",
                       "optimizer.eps=1e-8", "optimizer.weight_decay=" + adamw["weight_decay"].dump(),
                       "optimizer.decay=all", "optimizer.clip=0"});
    request.updates = 5;
    request.want_parameters = true;
    const ProbeResult result = probe(request);
    for (size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(result.losses[i], adamw["losses"][i + 1].get<double>(), kUpdatedLossTolerance);
    for (const NamedTensor& parameter : result.parameters) {
      if (noise_under_adam(parameter.name)) continue;
      double sum = 0;
      for (const float value : parameter.values) sum += static_cast<double>(value) * value;
      EXPECT_NEAR(std::sqrt(sum) / adamw["param_norms_after"][parameter.name].get<double>(), 1, kParameterTolerance)
          << parameter.name;
    }
    for (const uint64_t hash : result.parameter_hashes) EXPECT_EQ(hash, result.parameter_hashes[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DenseOracle, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string("c") + info.param; });

}  // namespace
}  // namespace fivefold::testing
