#include "planner/profiles/framework_time.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "base/installation.h"
#include "planner/profiles/rank_groups.h"

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
  EXPECT_NEAR(tokens_per_s(run, b200) / 9995, 1, 0.06);
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

double part(const FrameworkRun& run, const HardwareSpec& hardware, FrameworkPart part) {
  return framework_time(run, hardware).value()[part];
}

// More replicas exchange the same bytes over slower links; an adapter has next to none.
TEST(FrameworkTime, ExchangesGradientsOverTheNetwork) {
  const HardwareSpec h100 = cluster("dgx-h100");
  FrameworkRun run = llama();
  const double in_node = part(run, h100, FrameworkPart::kExchange);
  run.dp = 32;
  const double across = part(run, h100, FrameworkPart::kExchange);
  EXPECT_GT(across, 2 * in_node);
  run.trains_adapter = true;
  run.rank = 8;
  EXPECT_LT(part(run, h100, FrameworkPart::kExchange), 0.05 * across);
  run = llama();
  run.dp = 1;
  EXPECT_EQ(part(run, h100, FrameworkPart::kExchange), 0);
}

TEST(FrameworkTime, ItsPartsAreTheStep) {
  FrameworkRun run = llama();
  run.pp = 4, run.vpp = 3, run.microbatches = 8;
  const FrameworkTime time = framework_time(run, cluster("dgx-h100")).value();
  EXPECT_NEAR(std::accumulate(time.parts.begin(), time.parts.end(), 0.0), time.seconds, 1e-12 * time.seconds);
  // (p - 1) / (v m + p - 1) of the time in which stages compute (12 layers in 12 chunks), and the ends' imbalance.
  const double bubble = time[FrameworkPart::kBubble] / time.seconds;
  EXPECT_NEAR(bubble, 3.0 / (3 * 8 + 3), 0.03);
}

// What is extrapolated is what a replay of all microbatches has: here the steps before and behind the limit are on one
// line.
TEST(FrameworkTime, LongStepsGoOnAsTheyBegan) {
  const HardwareSpec h100 = cluster("dgx-h100");
  FrameworkRun run = llama();
  run.pp = 4;
  const auto seconds = [&](int64_t m) {
    run.microbatches = m;
    return framework_time(run, h100).value().seconds;
  };
  const double one = (seconds(16) - seconds(12)) / 4;
  EXPECT_NEAR((seconds(57) - seconds(17)) / 40, one, 1e-9 * one);
  EXPECT_NEAR((seconds(1024) - seconds(16)) / 1008, one, 1e-9 * one);
}

TEST(FrameworkTime, NoStepIsShorterThanItsBound) {
  const HardwareSpec h100 = cluster("dgx-h100");
  int tight = 0, all = 0;
  for (const int64_t tp : {1, 2, 8})
    for (const int64_t pp : {1, 2, 4, 6})
      for (const int64_t vpp : {1, 2})
        for (const int64_t m : {12, 24, 96})
          for (const Checkpointing recompute : {Checkpointing::kNone, Checkpointing::kFull}) {
            FrameworkRun run = llama();
            run.tp = tp, run.sp = tp > 1, run.pp = pp, run.vpp = pp > 1 ? vpp : 1, run.microbatches = m;
            run.checkpointing = recompute;
            const FrameworkClock clock(run, h100);
            const ModelTimes times = clock.times(run);
            const double step = clock.step(run, times).seconds, least = clock.least_seconds(run, times);
            EXPECT_LE(least, step * (1 + 1e-12)) << tp << ' ' << pp << ' ' << vpp << ' ' << m;
            ++all;
            tight += step < 1.02 * least ? 1 : 0;
          }
  EXPECT_GT(tight, all / 2);
}

// Experts: every rank's tokens cross the network twice a pass, 2 K h bytes each; those of the fullest rank count.
TEST(FrameworkTime, ExpertsExchangeTheirTokens) {
  const HardwareSpec h100 = cluster("dgx-h100");
  FrameworkRun run = llama();
  for (LayerSpec& layer : run.model.layers) {
    layer.mlp.kind = MlpKind::kMoe;
    layer.mlp.num_experts = 8;
    layer.mlp.experts_per_token = 2;
    layer.mlp.expert_ffn = 14336;
  }
  run.tp = 1, run.sp = false, run.dp = 8, run.ep = 8;
  const double in_node = part(run, h100, FrameworkPart::kExperts);
  // 4 exchanges a layer of 2 x 4096 x 8192 x 2 bytes, 7 / 8 of them sent at the link's share of 450 GB/s, after the
  // latency of a tree of 8; a part is hidden.
  const double exchange =
      3 * h100.node_link.latency_s.value + 7.0 / 8 * 2 * 4096 * 8192 * 2 / (450e9 * h100.device.link_share.value);
  EXPECT_NEAR(in_node / (12 * 4 * 4), exchange * (1 - framework_pace(run).hidden_experts), 1e-6 * exchange);
  run.expert_imbalance.set(1.25);
  EXPECT_NEAR(part(run, h100, FrameworkPart::kExperts) / in_node, 1.25, 1e-6);
  run.ep = 1;
  EXPECT_EQ(part(run, h100, FrameworkPart::kExperts), 0);
}

// The playbook's 1B on 64 H100: t = 8, two stages on different nodes, 64 microbatches of one sequence took 13.6 s,
// 1,202 tokens/s, whatever the layers' size. On one node, t = 4, 256 microbatches took 10.9 s, 12,003.
TEST(FrameworkTime, NanotronWaitsForItsHostWhereStagesAreOnOtherNodes) {
  FrameworkRun run;
  run.framework = Framework::kNanotron;
  run.model.hidden = 2048;
  run.model.vocab = 131072;
  run.model.tied_embeddings = true;
  LayerSpec layer;
  layer.mixer.num_heads = layer.mixer.num_kv_heads = 32;
  layer.mixer.head_dim = 64;
  layer.mlp.ffn = 8192;
  run.model.layers.assign(16, layer);
  run.dp = 4, run.tp = 8, run.pp = 2, run.sp = true, run.zero = 1, run.sequence = 4096, run.microbatches = 64;
  const HardwareSpec p5 = cluster("aws-p5");
  EXPECT_NEAR(tokens_per_s(run, p5) / 1202, 1, 0.2);
  run.dp = 1, run.tp = 4, run.zero = 0, run.microbatches = 256;
  EXPECT_NEAR(tokens_per_s(run, p5) / 12003, 1, 0.3);
}

TEST(FrameworkTime, SaysWhatIsNoLayout) {
  FrameworkRun run = llama();
  run.pp = 40;
  EXPECT_EQ(framework_time(run, cluster("dgx-h100")).error().where, "parallel.pp");
}

// Two racks of an NVL72 hold two groups of 64, not one and a part.
TEST(RankGroups, TakeWholeGroupsOfANode) {
  EXPECT_EQ(taken_devices(72, 64), 64);
  EXPECT_EQ(taken_devices(72, 32), 64);
  EXPECT_EQ(taken_devices(72, 8), 72);
  EXPECT_EQ(taken_devices(8, 16), 8);
  NetworkSpec network;
  network.devices_per_node = 72;
  FrameworkRun run;
  run.dp = 128, run.ep = 64;
  EXPECT_EQ(rank_groups(run, network).ep.nodes, 1);
}

// Against the groups themselves.
TEST(RankGroups, LieWhereTheRanksAre) {
  for (const int64_t devices : {1, 4, 6, 8, 72})
    for (const int64_t stride : {1, 2, 3, 4, 8, 12, 16})
      for (const int64_t ranks : {1, 2, 3, 4, 6, 8, 16, 64}) {
        NetworkSpec network;
        network.devices_per_node = devices;
        // All groups of that stride in a world of whole blocks of stride x ranks.
        GroupShape widest{static_cast<int>(ranks), 0, 0};
        for (int64_t block = 0; block < 24; ++block)
          for (int64_t offset = 0; offset < stride; ++offset) {
            std::vector<int> members;
            for (int64_t i = 0; i < ranks; ++i)
              members.push_back(static_cast<int>(block * stride * ranks + offset + i * stride));
            const GroupShape shape = group_shape(network, members);
            if (shape.nodes > widest.nodes ||
                (shape.nodes == widest.nodes && shape.ranks_per_node < widest.ranks_per_node))
              widest = shape;
          }
        if (ranks == 1) widest = {};
        EXPECT_EQ(strided_group(devices, stride, ranks), widest) << devices << ' ' << stride << ' ' << ranks;
      }
}

}  // namespace
}  // namespace fivefold
