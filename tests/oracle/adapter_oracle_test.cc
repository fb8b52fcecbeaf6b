// LoRA, QLoRA and DoRA against PEFT and bitsandbytes: loss, the gradient of every adapter tensor and the norm under
// every kind of layout, the losses after AdamW updates, and predicted against counted bytes, at the references'
// tolerances.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "store/safetensors.h"
#include "support/predicted.h"
#include "support/reference_run.h"

namespace fivefold::testing {
namespace {

constexpr double kLossTolerance = 1e-5;         // absolute
constexpr double kGradientTolerance = 2e-5;     // norm of difference / norm, per tensor
constexpr double kNormTolerance = 5e-6;         // relative
constexpr double kUpdatedLossTolerance = 3e-5;  // absolute

// Every ZeRO level, HSDP, accumulation, recompute, tensor and sequence parallelism beyond the number of KV heads,
// every kind of context parallelism, pipelines whose first stage's embedding is frozen, and mixes.
std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int zero : {0, 1, 2, 3}) {
    all.push_back({.dp = 1, .zero = zero, .micro = 4});
    all.push_back({.dp = 2, .zero = zero, .micro = 1, .accumulation = 2, .recompute_every = zero % 3});
    all.push_back({.dp = 4, .zero = zero, .micro = 1});
    for (const bool sp : {false, true}) all.push_back({.dp = 2, .zero = zero, .micro = 2, .tp = 2, .sp = sp});
  }
  all.push_back({.dp = 4, .zero = 3, .shard_size = 2, .micro = 1, .bucket_layers = 2});
  for (const bool sp : {false, true})
    all.push_back({.dp = 1, .zero = 0, .micro = 1, .accumulation = 4, .recompute_every = 1, .tp = 4, .sp = sp});
  for (const char* kind : {"ring", "all_gather", "ulysses"})
    all.push_back({.dp = 2, .zero = 2, .micro = 2, .cp = 2, .cp_kind = kind});
  for (const char* schedule : {"1f1b", "zb1p"})
    all.push_back({.dp = 2, .zero = 3, .micro = 1, .accumulation = 2, .pp = 2, .schedule = schedule});
  all.push_back({.dp = 1, .zero = 0, .micro = 1, .accumulation = 4, .pp = 4, .schedule = "1f1b"});
  all.push_back({.dp = 1, .zero = 1, .micro = 1, .accumulation = 4, .tp = 2, .sp = true, .pp = 2, .schedule = "zb1p"});
  all.push_back({.dp = 1, .zero = 0, .micro = 1, .accumulation = 4, .tp = 4, .sp = true, .pp = 2, .schedule = "zb1p"});
  all.push_back({.dp = 1, .zero = 3, .micro = 1, .accumulation = 4, .tp = 2, .cp = 2, .cp_kind = "ring"});
  return all;
}

struct AdapterCase {
  const char* name;
  std::filesystem::path gradients, expected;  // files
  std::vector<std::string> path;              // in the latter
  std::vector<std::string> settings;
  std::filesystem::path adapter;
  const char* model = "01_llama_gqa_untied";
};

AdapterCase lora_case(const char* name, const std::string& folder, const std::string& gradients,
                      std::vector<std::string> path, std::vector<std::string> settings) {
  for (const char* setting : {"method.rank=4", "method.alpha=8"}) settings.emplace_back(setting);
  return {name,
          oracle_folder() / folder / gradients,
          oracle_folder() / folder / "expected.json",
          std::move(path),
          std::move(settings),
          oracle_folder() / "10_lora_all_linear_r4"};
}

// Made by dora/make_dora.py.
AdapterCase dora_case(const char* name, const char* folder, const char* model, std::vector<std::string> settings) {
  const std::filesystem::path reference =
      std::filesystem::path(FIVEFOLD_SOURCE_DIR) / "tests" / "oracle" / "dora" / folder;
  settings.emplace_back("method.dora=true");
  return {name, reference / "grads.safetensors", reference / "expected.json", {}, std::move(settings), reference,
          model};
}

const AdapterCase kCases[] = {
    lora_case("lora", "10_lora_all_linear_r4", "adapter_grads.safetensors", {}, {"method.kind=lora"}),
    lora_case("qlora_single", "11_nf4_qlora", "adapter_grads_single.safetensors", {"qlora", "single"},
              {"method.kind=qlora", "method.double_quantization=false"}),
    lora_case("qlora_double", "11_nf4_qlora", "adapter_grads_double.safetensors", {"qlora", "double"},
              {"method.kind=qlora"}),
    dora_case("dora", "llama", "01_llama_gqa_untied", {"method.kind=lora", "method.rank=4", "method.alpha=8"}),
    dora_case("dora_nf4", "llama_nf4", "01_llama_gqa_untied", {"method.kind=qlora", "method.rank=4", "method.alpha=8"}),
    // Biases, linears without adapters beside others in one matrix, and rank-stabilised scaling.
    dora_case("dora_some", "qwen2_some", "04_qwen2_qkv_bias",
              {"method.kind=lora", "method.rank=3", "method.alpha=6", "method.rank_stabilized=true",
               "method.targets=down_proj,q_proj,up_proj,v_proj"}),
    dora_case("dora_gpt2", "gpt2", "05_gpt2",
              {"method.kind=lora", "method.rank=4", "method.alpha=8", "method.targets=c_attn,c_fc,c_proj"})};

std::map<std::string, std::vector<float>> read_tensors(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path).value();
  std::map<std::string, std::vector<float>> tensors;
  for (const TensorInfo& info : file.tensors()) {
    const auto bytes = file.bytes(info);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    tensors[info.name] = std::move(values);
  }
  return tensors;
}

ProbeResult probe(const ProbeRequest& request) {
  static EngineApi* const engine = load_engine().value();
  return engine->probe(request).value();
}

class AdapterOracle : public ::testing::TestWithParam<AdapterCase> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(oracle_folder() / GetParam().model))
      GTEST_SKIP() << "no reference cases at " << oracle_folder();
    reference_ = read_reference(oracle_folder() / GetParam().model).value();
    std::ifstream file(GetParam().expected);
    expected_ = nlohmann::json::parse(file);
    for (const std::string& key : GetParam().path) expected_ = nlohmann::json(expected_[key]);
  }
  ProbeRequest request(const Layout& layout, std::vector<std::string> settings) const {
    for (const std::string& setting : GetParam().settings) settings.push_back(setting);
    settings.push_back("method.adapter=" + GetParam().adapter.string());
    return probe_request(reference_, layout, settings);
  }
  Reference reference_;
  nlohmann::json expected_;
};

TEST_P(AdapterOracle, GradientsAndBytesUnderEveryLayout) {
  const auto right = read_tensors(GetParam().gradients);
  double worst = 0;
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name());
    const ProbeRequest asked = request(layout, {"optimizer.clip=0"});
    const ProbeResult result = probe(asked);
    EXPECT_NEAR(result.loss, expected_["loss"].get<double>(), kLossTolerance);
    EXPECT_NEAR(result.grad_norm / expected_["grad_norm"].get<double>(), 1, kNormTolerance);
    ASSERT_EQ(result.gradients.size(), right.size());
    for (const NamedTensor& gradient : result.gradients) {
      ASSERT_TRUE(right.contains(gradient.name)) << gradient.name;
      const double difference = relative_difference(gradient.values, right.at(gradient.name));
      EXPECT_LT(difference, kGradientTolerance) << gradient.name;
      worst = std::max(worst, difference);
    }
    expect_predicted(asked.model, build_inventory(asked.model), asked, result);
  }
  std::printf("largest gradient difference: %.2g of the tolerance\n", worst / kGradientTolerance);
}

TEST_P(AdapterOracle, AdamWUpdates) {
  nlohmann::json losses = {expected_["loss"]};
  if (expected_.contains("losses_after_adamw"))
    losses.insert(losses.end(), expected_["losses_after_adamw"].begin(), expected_["losses_after_adamw"].end());
  else
    losses = expected_.contains("adamw") ? expected_["adamw"]["losses"] : expected_["adamw_losses"];
  for (const Layout& layout : {Layout{.dp = 1, .zero = 0, .micro = 4}, Layout{.dp = 2, .zero = 1, .micro = 2},
                               Layout{.dp = 2, .zero = 2, .micro = 1, .accumulation = 2, .tp = 2, .sp = true},
                               Layout{.dp = 4, .zero = 3, .micro = 1, .recompute_every = 1}}) {
    SCOPED_TRACE(layout.name());
    ProbeRequest asked = request(
        layout, {"optimizer.kind=adamw", "optimizer.lr=2e-3", "optimizer.betas=[0.9, 0.95]", "optimizer.eps=1e-8",
                 "optimizer.weight_decay=0.1", "optimizer.decay=all", "optimizer.clip=0"});
    asked.updates = 5;
    const ProbeResult result = probe(asked);
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(result.losses[i], losses[i + 1].get<double>(), kUpdatedLossTolerance);
    for (const uint64_t hash : result.parameter_hashes) EXPECT_EQ(hash, result.parameter_hashes[0]);
  }
}

// Magnitudes start as the lengths of the rows: of the weights as they come out of 4 bits, and of rows of which no rank
// has all columns.
TEST_P(AdapterOracle, MagnitudesStartAsLengthsOfTheRows) {
  const std::filesystem::path file = GetParam().adapter / "magnitudes.safetensors";
  if (!std::filesystem::exists(file)) return;
  const auto right = read_tensors(file);
  for (const Layout& layout :
       {Layout{.dp = 1, .zero = 0, .micro = 4}, Layout{.dp = 2, .zero = 3, .micro = 1, .accumulation = 2, .tp = 2},
        Layout{.dp = 1, .zero = 0, .micro = 1, .accumulation = 4, .tp = 4, .sp = true, .pp = 2, .schedule = "zb1p"}}) {
    SCOPED_TRACE(layout.name());
    ProbeRequest asked = request(layout, {"optimizer.lr=0"});
    asked.config.config.method.adapter.clear();
    asked.updates = 1;
    asked.want_parameters = true;
    size_t seen = 0;
    for (const NamedTensor& parameter : probe(asked).parameters) {
      if (!right.contains(parameter.name)) continue;
      EXPECT_LT(relative_difference(parameter.values, right.at(parameter.name)), 1e-6) << parameter.name;
      ++seen;
    }
    EXPECT_EQ(seen, right.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, AdapterOracle, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fivefold::testing
