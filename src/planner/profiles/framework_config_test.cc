#include "planner/profiles/framework_config.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/installation.h"
#include "planner/profiles/framework_switches.h"
#include "spec/model_named.h"

namespace fivefold {
namespace {

HardwareSpec h100() {
  return read_hardware(std::filesystem::path(installation().configs) / "clusters" / "dgx-h100.toml").value();
}
ModelSpec named(const std::string& name) { return read_model_config(find_named_model(name).value()).value(); }

RunConfig megatron() {
  RunConfig config;
  config.framework.name = Framework::kMegatron;
  config.parallel = {.dp = 4, .tp = 4, .sp = true, .pp = 4};
  config.batch = {.global = 64, .micro = 2, .sequence = 4096};
  return config;
}

TEST(FrameworkConfig, ReadsTheLayoutAndTheSwitches) {
  RunConfig config = megatron();
  config.framework.switches = {"cross_entropy=native_fused", "dropout=on", "expert_imbalance=1.2"};
  const FrameworkRun run = framework_run(named("llama-3-8b"), config, h100()).value();
  EXPECT_EQ(run.microbatches, 8);  // 64 / (2 x 4)
  EXPECT_EQ(run.gpu, "h100-sxm-80gb");
  EXPECT_EQ(run.cross_entropy.value, CrossEntropyKernel::kNativeFused);
  EXPECT_FALSE(run.cross_entropy.assumed);
  EXPECT_TRUE(run.dropout.value);
  EXPECT_DOUBLE_EQ(run.expert_imbalance.value, 1.2);
  EXPECT_EQ(framework_run_config(run, config), config);
}

TEST(FrameworkConfig, NamesTheNearestSwitchAndValue) {
  FrameworkRun run;
  const Error name = set_switch(run, "cross_entropi=te").error();
  EXPECT_NE(name.hint.find("cross_entropy"), std::string::npos) << name.hint;
  EXPECT_NE(set_switch(run, "cross_entropy=fused").error().hint.find("native_fused"), std::string::npos);
  EXPECT_NE(set_switch(run, "expert_imbalance=-1").error().hint.find("positive"), std::string::npos);
  EXPECT_FALSE(set_switch(run, "dropout").ok());
  // Of another framework.
  EXPECT_FALSE(set_switch(run, "autocast=on").ok());
  run.framework = Framework::kHf;
  EXPECT_TRUE(set_switch(run, "autocast=on").ok());
}

TEST(FrameworkConfig, ReadsListsOfModules) {
  RunConfig config = megatron();
  config.framework.switches = {"recipe=mxfp8", "mtp_layers=1", "recomputed_modules=moe_act+layernorm"};
  const FrameworkRun run = framework_run(named("llama-3-8b"), config, h100()).value();
  EXPECT_EQ(run.megatron.recomputed_modules, (std::vector<std::string>{"moe_act", "layernorm"}));
  EXPECT_EQ(run.megatron.recipe.value, ScalingRecipe::kMxfp8);
  EXPECT_EQ(framework_run_config(run, config), config);
  FrameworkRun other;
  EXPECT_NE(set_switch(other, "recomputed_modules=moe_act+norm").error().hint.find("layernorm"), std::string::npos);
  EXPECT_FALSE(set_switch(other, "offloaded_modules=").ok());
}

std::string refused(RunConfig config, const std::string& model = "llama-3-8b") {
  const Result<FrameworkRun> run = framework_run(named(model), config, h100());
  return run.ok() ? "" : run.error().where + ": " + run.error().hint;
}

TEST(FrameworkConfig, RefusesMethodsThatTheFrameworkDoesNotHave) {
  RunConfig config = megatron();
  config.method.kind = MethodKind::kLora;
  EXPECT_EQ(refused(config), "");
  config.method.kind = MethodKind::kQlora;
  EXPECT_EQ(refused(config), "method.kind: use lora");
  config = megatron();
  config.parallel.zero = 3;
  EXPECT_EQ(refused(config), "parallel.zero: use zero = 1");
  config.framework.switches = {"fsdp=on"};
  EXPECT_EQ(refused(config), "");
}

TEST(FrameworkConfig, RefusesLayoutsThatTheFrameworkDoesNotHave) {
  RunConfig config = megatron();
  EXPECT_EQ(refused(config), "");
  config.parallel.pp = 5;  // 32 layers
  EXPECT_EQ(refused(config), "parallel.pp: use 4");
  config.parallel.pp = 4;
  config.parallel.zero = 3;
  EXPECT_EQ(refused(config), "parallel.zero: use zero = 1");
  config = megatron();
  config.batch.global = 60;
  EXPECT_EQ(refused(config), "batch.global: use 56");
  config = megatron();
  config.parallel.sp = false;
  EXPECT_EQ(refused(config), "");
  EXPECT_EQ(refused(config, "mixtral-8x7b"), "parallel.sp: use sp = true");
  config.framework.name = Framework::kHf;
  EXPECT_EQ(refused(config), "parallel.tp: use tp = 1, or another framework");
  config = megatron();
  config.parallel.schedule = ScheduleKind::kZbv;
  EXPECT_EQ(refused(config), "parallel.schedule: use 1f1b, or interleaved with vpp chunks a rank");
  config = megatron();
  config.parallel.vpp = 2;
  config.parallel.schedule = ScheduleKind::kInterleaved;
  config.batch.global = 48;  // 6 microbatches of groups of 4
  EXPECT_EQ(refused(config), "parallel.vpp: use a global batch of 16 more");
}

}  // namespace
}  // namespace fivefold
