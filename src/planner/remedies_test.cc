#include "planner/remedies.h"

#include "planner/planner_testing.h"
#include "spec/run_config_io.h"
#include "spec/validate.h"

namespace fivefold::test {
namespace {

// A device whose memory is no limit, for runs whose limit is in the configuration.
HardwareSpec large_device() { return named_hardware("h100-sxm-80gb"); }

RunConfig configured(const std::vector<std::string>& settings) {
  const LoadedConfig loaded = load_config({.set = settings});
  EXPECT_EQ(to_string(loaded.errors), "");
  return loaded.config;
}

const Remedy* find(const RemedyList& list, RemedyKind kind) {
  for (const Remedy& remedy : list.each)
    if (remedy.kind == kind) return &remedy;
  return nullptr;
}

int64_t saving(const RemedyList& list, RemedyKind kind) {
  const Remedy* remedy = find(list, kind);
  return remedy == nullptr ? 0 : list.before.peak - remedy->need.peak;
}

using Settings = std::vector<std::string>;

// Llama-3-8B keeps 94,344 bytes a token and layer (docs/memory.md): two sequences of 1,024 tokens less are 2 x 1,024 x
// 32 x 94,344 = 6.18e9 bytes, and the gradient of the stream and a layer's temporaries for 2,048 tokens.
TEST(Remedies, HalfTheMicrobatchHalvesActivations) {
  const ModelSpec model = named_model("llama-3-8b");
  RunConfig config = configured({"batch.micro=4", "batch.global=8", "batch.sequence=1024"});
  const HardwareSpec hardware = large_device();
  config.limits.memory = find_remedies(model, config, hardware).before.peak - 5'000'000'000;
  const RemedyList list = find_remedies(model, config, hardware);
  const Remedy* remedy = find(list, RemedyKind::kMicrobatch);
  ASSERT_NE(remedy, nullptr);
  EXPECT_EQ(remedy->settings, Settings{"batch.micro=2"});
  EXPECT_TRUE(remedy->need.fits());
  const double saved = 2.0 * 1024 * 32 * 94'344;
  EXPECT_GE(static_cast<double>(saving(list, RemedyKind::kMicrobatch)), saved);
  EXPECT_LE(static_cast<double>(saving(list, RemedyKind::kMicrobatch)), 1.06 * saved);
}

// The batch of a step stays the same where it followed from the microbatch. One microbatch of 4 in fp32 becomes four of
// one; gradients are fp32 either way.
TEST(Remedies, SmallerMicrobatchesAccumulate) {
  const RemedyList list =
      find_remedies(named_model("llama-3-8b"),
                    configured({"batch.micro=4", "precision.compute=fp32", "limits.memory=1GiB"}), large_device());
  const Remedy* remedy = find(list, RemedyKind::kMicrobatch);
  ASSERT_NE(remedy, nullptr);
  EXPECT_EQ(remedy->settings, (Settings{"batch.global=4", "batch.micro=1"}));
}

// In bf16 a second microbatch turns gradients into fp32, 2 bytes more a parameter: 16 GB for 3 x 2.9 GiB of
// activations.
TEST(Remedies, WhatSavesNothingIsNotOffered) {
  const RemedyList list = find_remedies(named_model("llama-3-8b"), configured({"batch.micro=4"}), large_device());
  EXPECT_EQ(find(list, RemedyKind::kMicrobatch), nullptr);
}

// 12 of 16 bytes a parameter are states, of which level 1 over 8 ranks keeps an eighth: 10.5 N saved. Level 3: 14 N,
// less what is gathered at the peak: the head of 128,256 x 4,096 and a layer of 218,112,000 weights, and the head's
// gradient.
TEST(Remedies, ShardingSavesByLevel) {
  const ModelSpec model = named_model("llama-3-8b");
  const double n = 8'030'261'248;
  RunConfig config = configured({"parallel.dp=8", "parallel.zero=0"});
  const int64_t peak = find_remedies(model, config, large_device()).before.peak;
  config.limits.memory = peak - 80'000'000'000;
  RemedyList list = find_remedies(model, config, large_device());
  ASSERT_NE(find(list, RemedyKind::kSharding), nullptr);
  EXPECT_EQ(find(list, RemedyKind::kSharding)->settings, Settings{"parallel.zero=1"});
  EXPECT_NEAR(static_cast<double>(saving(list, RemedyKind::kSharding)) / n, 10.5, 0.001);
  config.limits.memory = kMib;  // never
  list = find_remedies(model, config, large_device());
  EXPECT_EQ(find(list, RemedyKind::kSharding)->settings, Settings{"parallel.zero=3"});
  const double gathered = 2 * (2 * 128'256.0 * 4096 + 218'112'000);
  EXPECT_NEAR(static_cast<double>(saving(list, RemedyKind::kSharding)) / n, 14 - gathered / n, 0.001);
}

// A layer keeps 2h = 8,192 of 94,344 bytes a token. Segments of two layers need least of 32: 16 x 8,192 + 2 x 94,344 =
// 319,760 instead of 32 x 94,344 = 3,019,008 bytes a token, at 4,096 tokens 11.06 GB less.
TEST(Remedies, RecomputeKeepsOneInputASegment) {
  const RemedyList list = find_remedies(named_model("llama-3-8b"),
                                        configured({"batch.sequence=4096", "limits.memory=1GiB"}), large_device());
  const Remedy* remedy = find(list, RemedyKind::kRecomputeLayers);
  ASSERT_NE(remedy, nullptr);
  EXPECT_EQ(remedy->settings, (Settings{"recompute.kind=full", "recompute.every=2"}));
  const double saved = (3'019'008.0 - 319'760) * 4096;
  EXPECT_NEAR(static_cast<double>(saving(list, RemedyKind::kRecomputeLayers)), saved, 0.03 * saved);
  EXPECT_LT(remedy->need.tokens_per_s, list.before.tokens_per_s);
}

// Every remedy is valid, saves memory and is what its settings say; they come in order, a kind once.
TEST(Remedies, AreValidSettingsInOrder) {
  const ModelSpec model = named_model("smollm2-135m");
  for (const Settings& settings :
       {Settings{}, Settings{"batch.micro=8"}, Settings{"parallel.dp=4", "batch.global=64"},
        Settings{"precision.compute=fp32", "batch.micro=6", "batch.sequence=2048"},
        Settings{"parallel.pp=2", "batch.global=8"}, Settings{"parallel.tp=3", "parallel.sp=true"},
        Settings{"recompute.kind=full", "recompute.every=5", "parallel.dp=2", "parallel.zero=3"}}) {
    const RunConfig config = configured(settings);
    const RemedyList list = find_remedies(model, config, large_device());
    EXPECT_FALSE(list.each.empty());
    for (size_t i = 0; i < list.each.size(); ++i) {
      const Remedy& remedy = list.each[i];
      EXPECT_LT(remedy.need.peak, list.before.peak) << to_string(remedy.kind);
      EXPECT_EQ(to_string(validate_engine(model, remedy.config)), "");
      const LoadedConfig pasted = load_config({.set = remedy.settings}, config);
      EXPECT_EQ(to_string(pasted.errors), "");
      EXPECT_TRUE(pasted.config == remedy.config) << to_string(remedy.kind);
      EXPECT_EQ(resolve(remedy.config, model)->config.batch.global, resolve(config, model)->config.batch.global);
      if (i > 0) {
        EXPECT_LT(list.each[i - 1].kind, remedy.kind);
      }
    }
  }
}

// SmolLM2-135M, 8,192 tokens on each of two ranks: 16 x 134.5e6 = 2.15 GB of states and 8,192 x 30 x 11,564 bytes = 2.8
// GB of activations, beside 0.97 GB that a GPU keeps. Under 2.85 GB neither may stay; a smaller microbatch or more
// ranks there are not for two sequences.
TEST(Remedies, TogetherWhenNoneIsEnough) {
  const ModelSpec model = named_model("smollm2-135m");
  const RunConfig config = configured(
      {"batch.sequence=8192", "batch.global=2", "parallel.dp=2", "parallel.zero=0", "limits.memory=2850000000"});
  const RemedyList list = find_remedies(model, config, large_device());
  EXPECT_GT(list.before.peak, 5'900'000'000);
  EXPECT_GE(list.each.size(), 3u);
  for (const Remedy& remedy : list.each) EXPECT_FALSE(remedy.need.fits()) << to_string(remedy.kind);
  ASSERT_TRUE(list.together.has_value());
  EXPECT_TRUE(list.together->need.fits());
  EXPECT_GE(list.together->settings.size(), 2u);
  EXPECT_TRUE(load_config({.set = list.together->settings}, config).config == list.together->config);
  // Each of the settings is needed.
  for (size_t i = 0; i < list.together->settings.size(); ++i) {
    if (list.together->settings[i].starts_with("recompute.every")) continue;  // a detail of recompute.kind
    Settings fewer = list.together->settings;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    const RunConfig without = load_config({.set = fewer}, config).config;
    if (validate_layout(model, without).empty()) {
      EXPECT_FALSE(find_remedies(model, without, large_device()).before.fits()) << list.together->settings[i];
    }
  }
}

TEST(Remedies, NoneTogetherUnderAnImpossibleLimit) {
  const RemedyList list = find_remedies(named_model("llama-3-8b"), configured({"limits.memory=1MiB"}), large_device());
  EXPECT_FALSE(list.together.has_value());
}

}  // namespace
}  // namespace fivefold::test
