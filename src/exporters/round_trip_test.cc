// Exporting a plan and importing the files gives the plan back, but for the keys that the export says it cannot
// express.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "exporters/export_sheet.h"
#include "exporters/imported_run.h"
#include "spec/model_named.h"
#include "spec/run_config_io.h"
#include "spec/run_config_keys.h"
#include "spec/run_config_resolve.h"

namespace fivefold {
namespace {

ModelSpec named(const std::string& name) { return read_model_config(find_named_model(name).value()).value(); }

RunConfig plan(const std::string& settings) {
  LoadedConfig loaded = parse_config(settings, "plan");
  EXPECT_TRUE(loaded.errors.empty()) << (loaded.errors.empty() ? "" : loaded.errors.front().message());
  return resolve(loaded.config, named(loaded.config.model.name)).value().config;
}

Imported import_back(const Exported& exported) {
  std::map<std::string, std::string> files;
  for (const ExportedFile& file : exported.files) files[file.name] = file.text;
  ImportOptions options;
  options.read_file = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = files.find(name);
    return found == files.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  return import_run(exported.target, exported.files.front().text, exported.files.front().name, options);
}

std::string value_of(RunConfig& config, const ConfigKey& key) { return setting_text(key.field(config)); }

// Two ways to say one thing: all of dp x cp as a shard group is 0, one replica shards nothing, tokens are steps.
RunConfig with_one_wording(RunConfig config) {
  ParallelConfig& p = config.parallel;
  if (p.dp * p.cp == 1 || p.shard_size == 1) p.zero = 0;
  if (config.run.steps > 0) config.run.tokens = 0;
  if (p.shard_size == p.dp * p.cp || p.zero == 0) p.shard_size = 0;
  return config;
}

// Every key that came back otherwise and that no note owns up to.
std::vector<std::string> lost(RunConfig config, const Exported& exported, RunConfig back) {
  std::vector<std::string> keys;
  config = with_one_wording(config), back = with_one_wording(back);
  for (const ConfigKey& key : config_keys()) {
    const std::string path = key.path();
    // The files are another framework's by their nature, and state more switches than were asked for.
    if (key.section == "framework" || key.section == "hardware") continue;
    const bool noted = std::any_of(exported.notes.begin(), exported.notes.end(),
                                   [&](const ExportNote& note) { return note.key == path; });
    if (!noted && value_of(config, key) != value_of(back, key))
      keys.push_back(path + ": " + value_of(config, key) + " became " + value_of(back, key));
  }
  return keys;
}

void expect_round_trip(ForeignTarget target, const std::string& settings) {
  const RunConfig config = plan(settings);
  const Result<Exported> exported = export_run(target, named(config.model.name), config, 8);
  ASSERT_TRUE(exported.ok()) << exported.error().message();
  const Imported imported = import_back(*exported);
  ASSERT_TRUE(imported.errors.empty()) << imported.errors.front().message() << "\n" << exported->files.front().text;
  for (const std::string& key : lost(config, *exported, imported.config)) ADD_FAILURE() << key;
  for (const ImportNote& note : imported.unknown)
    ADD_FAILURE() << note.where << " " << note.name << " is not understood";
  EXPECT_EQ(imported.model.layers, named(config.model.name).layers);
}

std::string base(const std::string& model, const std::string& more) {
  return "[model]\nname = \"" + model + "\"\n[run]\nname = \"r\"\nsteps = 500\nseed = 7\n[lr]\nwarmup_steps = 20\n" +
         more;
}

TEST(RoundTrip, MegatronDenseWithTensorAndPipelineParallelism) {
  expect_round_trip(ForeignTarget::kMegatron, base("llama-3.1-70b", R"(
[parallel]
dp = 2
tp = 8
sp = true
pp = 4
vpp = 2
schedule = "interleaved"
[batch]
global = 64
micro = 1
sequence = 8192
[recompute]
kind = "full"
)"));
}

TEST(RoundTrip, MegatronUnevenStagesAndContextParallelismInFp8) {
  expect_round_trip(ForeignTarget::kMegatron, base("llama-3.1-405b", R"(
[parallel]
dp = 2
tp = 8
sp = true
pp = 16
cp = 2
cp_kind = "all_gather"
[batch]
global = 64
sequence = 8192
packing = "documents"
[precision]
compute = "fp8"
fp8 = "delayed"
fp8_history = 1024
[optimizer]
lr = 8e-5
)"));
}

TEST(RoundTrip, MegatronExpertsOverTheirOwnGrid) {
  expect_round_trip(ForeignTarget::kMegatron, base("mixtral-8x7b", R"(
[parallel]
dp = 8
tp = 2
sp = true
ep = 8
etp = 1
zero = 1
[batch]
global = 256
sequence = 4096
[precision]
optimizer_state = "bf16"
)"));
}

TEST(RoundTrip, MegatronLatentAttentionWithWarmUpStableDecay) {
  expect_round_trip(ForeignTarget::kMegatron, base("deepseek-v3", R"(
decay_steps = 100
schedule = "wsd"
decay = "1-sqrt"
[parallel]
dp = 32
pp = 16
ep = 32
[batch]
global = 1024
sequence = 4096
)"));
}

TEST(RoundTrip, TorchtitanShardedFully) {
  expect_round_trip(ForeignTarget::kTorchtitan, base("llama-3.1-8b", R"(
[parallel]
dp = 8
zero = 3
[batch]
global = 64
micro = 2
sequence = 8192
packing = "documents"
[precision]
params = "fp32"
[recompute]
kind = "full"
)"));
}

TEST(RoundTrip, TorchtitanHybridWithFourAxes) {
  expect_round_trip(ForeignTarget::kTorchtitan, base("llama-3.1-405b", R"(
schedule = "linear"
min_ratio = 0.0
[parallel]
dp = 8
tp = 8
sp = true
pp = 4
vpp = 2
schedule = "interleaved"
cp = 2
cp_kind = "all_gather"
zero = 2
shard_size = 8
[batch]
global = 64
micro = 1
sequence = 8192
packing = "documents"
[precision]
params = "fp32"
[optimizer]
decay = "all"
)"));
}

TEST(RoundTrip, TorchtitanExpertsWithBf16States) {
  expect_round_trip(ForeignTarget::kTorchtitan, base("qwen3-30b-a3b", R"(
schedule = "wsd"
decay_steps = 50
decay = "cosine"
[parallel]
dp = 16
ep = 8
zero = 3
[batch]
global = 32
micro = 1
sequence = 4096
packing = "documents"
[precision]
params = "fp32"
optimizer_state = "bf16"
)"));
}

TEST(RoundTrip, DeepspeedLevelThreeInFp16) {
  expect_round_trip(ForeignTarget::kDeepspeed, base("llama-2-7b", R"(
[parallel]
dp = 16
zero = 3
shard_size = 8
[batch]
global = 128
micro = 4
sequence = 2048
[precision]
compute = "fp16"
loss_scale = 65536
[recompute]
kind = "full"
)"));
}

TEST(RoundTrip, AccelerateWithTensorAndContextParallelism) {
  expect_round_trip(ForeignTarget::kAccelerate, base("qwen3-8b", R"(
[parallel]
dp = 4
tp = 2
cp = 2
zero = 3
shard_size = 4
[batch]
global = 8
micro = 1
sequence = 16384
packing = "documents"
[precision]
params = "fp32"
)"));
}

TEST(RoundTrip, TrlQloraOnOneGpu) {
  expect_round_trip(ForeignTarget::kTrl, base("llama-3.1-8b", R"(
schedule = "cosine"
min_ratio = 0.1
[method]
kind = "qlora"
rank = 64
alpha = 16.0
dropout = 0.05
dora = true
targets = ["q_proj", "v_proj"]
[batch]
global = 16
micro = 2
sequence = 4096
[precision]
optimizer_state = "8bit"
[recompute]
kind = "full"
)"));
}

TEST(RoundTrip, TrlShardedWithoutPacking) {
  expect_round_trip(ForeignTarget::kTrl, base("qwen2.5-7b", R"(
schedule = "linear"
min_ratio = 0.25
[parallel]
dp = 8
zero = 2
[batch]
global = 64
micro = 2
sequence = 4096
packing = "documents"
[precision]
params = "fp32"
)"));
}

TEST(RoundTrip, AxolotlLoraOverShards) {
  expect_round_trip(ForeignTarget::kAxolotl, base("mistral-7b-v0.3", R"(
schedule = "constant"
[method]
kind = "lora"
rank = 32
alpha = 64.0
rank_stabilized = true
[parallel]
dp = 4
zero = 3
[batch]
global = 32
micro = 2
sequence = 8192
packing = "documents"
[recompute]
kind = "full"
)"));
}

TEST(RoundTrip, AxolotlFullWithShardedOptimizer) {
  expect_round_trip(ForeignTarget::kAxolotl, base("llama-3.2-3b", R"(
[parallel]
dp = 8
zero = 1
[batch]
global = 64
micro = 1
sequence = 8192
packing = "documents"
[checkpoint]
every = 100
keep = 3
)"));
}

// One value beside the default for each key that has another: whatever a target does not bring back it says.
TEST(RoundTrip, NoKeyIsLostInSilence) {
  const RunConfig start = plan(base("llama-3.1-8b", "[batch]\nglobal = 8\nsequence = 2048\n"));
  for (const ConfigKey& key : config_keys()) {
    for (const char* value :
         {"true",      "false",    "2",    "3",    "0.5",    "0.25,0.5", "fp32",    "bf16", "fp16", "fp8",
          "cosine",    "constant", "wsd",  "full", "lora",   "qlora",    "sgd",     "all",  "none", "8bit",
          "documents", "q_proj",   "step", "text", "1-sqrt", "block",    "delayed", "chat", "mpi"}) {
      const ConfigSources sources{.set = {key.path() + "=" + value}};
      const LoadedConfig loaded = load_config(sources, start);
      if (!loaded.errors.empty() || loaded.config == start || key.section == "framework" ||
          key.path() == "model.name" || key.path() == "model.config")
        continue;
      const Result<ResolvedConfig> resolved = resolve(loaded.config, named(loaded.config.model.name));
      if (!resolved.ok()) continue;
      for (int target = 0; target < kNumForeignTargets; ++target) {
        const Result<Exported> exported =
            export_run(static_cast<ForeignTarget>(target), named("llama-3.1-8b"), resolved->config, 8);
        if (!exported.ok()) continue;  // refused with a reason
        const Imported imported = import_back(*exported);
        ASSERT_TRUE(imported.errors.empty()) << sources.set[0] << " " << imported.errors.front().message();
        for (const std::string& missing : lost(resolved->config, *exported, imported.config))
          ADD_FAILURE() << to_string(static_cast<ForeignTarget>(target)) << ", " << sources.set[0] << ": " << missing;
      }
    }
  }
}

TEST(Export, RefusesAnAxisThatTheTargetDoesNotHave) {
  const RunConfig config = plan(base("llama-3.1-8b", "[parallel]\ntp = 2\n"));
  const Result<Exported> exported = export_run(ForeignTarget::kTrl, named("llama-3.1-8b"), config, 8);
  ASSERT_FALSE(exported.ok());
  EXPECT_EQ(exported.error().where, "parallel.tp");
  EXPECT_NE(exported.error().hint.find("megatron"), std::string::npos);
}

TEST(Export, NamesTheModelsOfATargetThatHasFew) {
  const RunConfig config = plan(base("mixtral-8x7b", ""));
  const Result<Exported> exported = export_run(ForeignTarget::kTorchtitan, named("mixtral-8x7b"), config, 8);
  ASSERT_FALSE(exported.ok());
  EXPECT_NE(exported.error().hint.find("llama-3.1-8b"), std::string::npos);
}

}  // namespace
}  // namespace fivefold
