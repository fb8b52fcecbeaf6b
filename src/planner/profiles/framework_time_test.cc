#include "planner/profiles/framework_time.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/installation.h"

namespace fivefold {
namespace {

HardwareSpec cluster(const char* name) {
  return read_hardware(std::filesystem::path(installation().configs) / "clusters" / (std::string(name) + ".toml"))
      .value();
}

// SimuMax's Llama-3-70B of 12 layers on one node of B200.
FrameworkRun llama() {
  FrameworkRun run;
  run.model.hidden = 8192;
  run.model.vocab = 128256;
  LayerSpec layer;
  layer.mixer.num_heads = 64;
  layer.mixer.num_kv_heads = 8;
  layer.mixer.head_dim = 128;
  layer.mlp.ffn = 28672;
  run.model.layers.assign(12, layer);
  run.dp = 4;
  run.tp = 2;
  run.sp = true;
  run.zero = 1;
  run.sequence = 4096;
  run.microbatches = 4;
  return run;
}

double tokens_per_s(const FrameworkRun& run, const HardwareSpec& hardware) {
  return framework_time(run, hardware).value().tokens_per_s;
}

// Published: 11,292 (two stages 9,718; four tensor ranks 9,995).
TEST(FrameworkTime, MeetsPublishedRunsOnB200) {
  const HardwareSpec b200 = cluster("dgx-b200");
  FrameworkRun run = llama();
  EXPECT_NEAR(tokens_per_s(run, b200) / 11292, 1, 0.05);
  run.tp = 4, run.dp = 2;
  EXPECT_NEAR(tokens_per_s(run, b200) / 9995, 1, 0.05);
  run.tp = 1, run.sp = false, run.pp = 2, run.dp = 4;
  EXPECT_NEAR(tokens_per_s(run, b200) / 9718, 1, 0.05);
}

TEST(FrameworkTime, FollowsItsSwitches) {
  const HardwareSpec h100 = cluster("dgx-h100");
  const FrameworkRun run = llama();
  const double plain = tokens_per_s(run, h100);
  FrameworkRun changed = run;
  changed.fp8 = true;
  EXPECT_GT(tokens_per_s(changed, h100), 1.1 * plain);
  changed = run;
  changed.tuned_kernels.set(true);
  EXPECT_GT(tokens_per_s(changed, h100), 1.1 * plain);
  changed = run;
  changed.checkpointing = Checkpointing::kFull;
  EXPECT_LT(tokens_per_s(changed, h100), 0.85 * plain);
  changed = run;
  changed.framework = Framework::kDeepspeed;
  EXPECT_LT(tokens_per_s(changed, h100), plain);
}

// More replicas exchange the same bytes over slower links; an adapter has next to none.
TEST(FrameworkTime, ExchangesGradientsOverTheNetwork) {
  const HardwareSpec h100 = cluster("dgx-h100");
  FrameworkRun run = llama();
  const double in_node = framework_time(run, h100).value().exchange_s;
  run.dp = 32;
  const double across = framework_time(run, h100).value().exchange_s;
  EXPECT_GT(across, 2 * in_node);
  run.trains_adapter = true;
  run.rank = 8;
  EXPECT_LT(framework_time(run, h100).value().exchange_s, 0.05 * across);
  run = llama();
  run.dp = 1;
  EXPECT_EQ(framework_time(run, h100).value().exchange_s, 0);
}

TEST(FrameworkTime, SaysWhatItCannotPredict) {
  FrameworkRun run = llama();
  run.ep = 2;
  EXPECT_EQ(framework_time(run, cluster("dgx-h100")).error().where, "parallel.ep");
  run = llama();
  run.pp = 40;
  EXPECT_FALSE(framework_time(run, cluster("dgx-h100")).ok());
}

}  // namespace
}  // namespace fivefold
