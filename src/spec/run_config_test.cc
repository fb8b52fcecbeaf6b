#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "spec/run_config_keys.h"
#include "spec/run_config_testing.h"

namespace fivefold {
namespace {

using namespace test;

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(testing::TempDir() + "/run_config_" + std::to_string(getpid()) + ".toml") {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(RunConfig, ReadsEverySection) {
  const RunConfig c = parsed(R"(
[run]
name = "demo"
steps = 60
[model]
name = "llama-3.1-8b"
weights = "random"
[method]
kind = "lora"
alpha = 8
targets = ["q_proj", "v_proj"]
[hardware]
name = "h100-80gb"
[parallel]
dp = 2
sp = true
schedule = "v-half"
cp_kind = "all_gather"
zero = 3
[batch]
global = 8
micro = 2
sequence = 512
packing = "documents"
[precision]
compute = "bf16"
grads = "fp32"
optimizer_state = "8bit"
[recompute]
kind = "full"
every = 2
[optimizer]
lr = 3e-4
betas = [0.9, 0.999]
decay = "all"
[lr]
schedule = "wsd"
decay = "1-sqrt"
[data]
train = "text.txt"
format = "jsonl"
[checkpoint]
resume = "none"
[limits]
memory = "600MiB"
[comm]
backend = "mpi"
timeout_s = 30
[log]
level = "warning"
)");
  EXPECT_EQ(c.run.name, "demo");
  EXPECT_EQ(c.run.steps, 60);
  EXPECT_EQ(c.method.kind, MethodKind::kLora);
  EXPECT_EQ(c.method.alpha, 8.0);
  EXPECT_EQ(c.method.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_TRUE(c.parallel.sp);
  EXPECT_EQ(c.parallel.schedule, ScheduleKind::kVHalf);
  EXPECT_EQ(c.parallel.cp_kind, CpKind::kAllGather);
  EXPECT_EQ(c.parallel.zero, 3);
  EXPECT_EQ(c.parallel.tp, 1) << "a key that is left out keeps its default";
  EXPECT_EQ(c.batch.packing, Packing::kDocuments);
  EXPECT_EQ(c.precision.grads, DType::kFloat32);
  EXPECT_FALSE(c.precision.params.has_value());
  EXPECT_EQ(c.precision.optimizer_state, OptimizerStateKind::k8Bit);
  EXPECT_EQ(c.optimizer.betas[1], 0.999);
  EXPECT_EQ(c.lr.decay, WsdDecay::kOneMinusSqrt);
  EXPECT_EQ(c.data.format, DataFormat::kJsonl);
  EXPECT_EQ(c.limits.memory, 600 * 1024 * 1024);
  EXPECT_EQ(c.comm.timeout_s, 30.0);
  EXPECT_EQ(c.log.level, LogLevel::kWarning);
}

TEST(RunConfig, NamesOfEnumeratorsAreInOrder) {
  EXPECT_EQ(to_string(ScheduleKind::kInterleaved), "interleaved");
  EXPECT_EQ(to_string(ScheduleKind::kDualPipeV), "dualpipev");
  EXPECT_EQ(to_string(CpKind::kUlysses), "ulysses");
  EXPECT_EQ(to_string(ComputeKind::kFp8), "fp8");
  EXPECT_EQ(to_string(Fp8Scaling::kBlock), "block");
  EXPECT_EQ(to_string(CommBackend::kNccl), "nccl");
  EXPECT_EQ(to_string(LogLevel::kInfo), "info");
}

TEST(RunConfig, CountsTakeSuffixes) {
  EXPECT_EQ(parsed("[run]\ntokens = \"300B\"").run.tokens, 300'000'000'000);
  EXPECT_EQ(parsed("[run]\ntokens = \"1.5T\"").run.tokens, 1'500'000'000'000);
  EXPECT_EQ(parsed("[run]\ntokens = 2e9").run.tokens, 2'000'000'000);
  EXPECT_EQ(parsed("[run]\ntokens = 12345").run.tokens, 12345);
}

TEST(RunConfig, SettingsAreTypedByTheirKey) {
  EXPECT_EQ(with("parallel.zero=3").parallel.zero, 3);
  EXPECT_EQ(with("run.name=007").run.name, "007") << "text stays text";
  EXPECT_EQ(with("run.name=\"a b\"").run.name, "a b");
  EXPECT_EQ(with("data.train=a=b").data.train, "a=b") << "only the first = separates";
  EXPECT_EQ(with("data.train=").data.train, "");
  EXPECT_EQ(with("data.train=C:\\new\\\"x\"").data.train, "C:\\new\\\"x\"");
  EXPECT_EQ(with("optimizer.lr=1e-3").optimizer.lr, 1e-3);
  EXPECT_EQ(with("optimizer.lr=1").optimizer.lr, 1.0) << "a number may be an integer";
  EXPECT_EQ(with("optimizer.betas=0.8,0.9").optimizer.betas, (std::array<double, 2>{0.8, 0.9}));
  EXPECT_EQ(with("optimizer.betas=[0.8, 0.9]").optimizer.betas, (std::array<double, 2>{0.8, 0.9}));
  EXPECT_EQ(with("method.targets=q_proj, v_proj").method.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(with("method.targets=[\"q_proj\"]").method.targets, (std::vector<std::string>{"q_proj"}));
  EXPECT_EQ(with("recompute.tensors=[]").recompute.tensors, std::vector<std::string>{});
  EXPECT_EQ(with("precision.reduce=bf16").precision.reduce, DType::kBFloat16);
  EXPECT_EQ(with("limits.memory=24GB").limits.memory, 24'000'000'000);
  EXPECT_EQ(with("run.tokens=2B").run.tokens, 2'000'000'000);
  EXPECT_EQ(with("parallel.stages=balanced").parallel.stages.cut, StageCut::kBalanced);
  const StageLayers listed{.cut = StageCut::kListed, .layers = {4, 0, 3}};
  EXPECT_EQ(with("parallel.stages=4, 0, 3").parallel.stages, listed);
  EXPECT_EQ(with("parallel.stages=[4,0,3]").parallel.stages, listed);
  EXPECT_EQ(with("parallel.stages=7").parallel.stages, (StageLayers{.cut = StageCut::kListed, .layers = {7}}));
  EXPECT_TRUE(with("parallel.sp=true").parallel.sp);
}

TEST(RunConfig, FlagBeatsSetBeatsFileBeatsDefault) {
  const TemporaryFile file("[parallel]\ndp = 2\ntp = 2\ncp = 2\n");
  const LoadedConfig loaded = load_config(
      {.file = file.path(), .set = {"parallel.dp=3", "parallel.tp=3", "parallel.dp=4"}, .flags = {"parallel.tp=8"}});
  EXPECT_EQ(errors_of(loaded), "");
  EXPECT_EQ(loaded.config.parallel.cp, 2);
  EXPECT_EQ(loaded.config.parallel.dp, 4) << "of two equal settings the later counts";
  EXPECT_EQ(loaded.config.parallel.tp, 8);
  EXPECT_EQ(loaded.config.parallel.pp, 1);
}

TEST(RunConfig, AStrongerSourceReplacesTheOtherWayToSayTheSame) {
  const TemporaryFile file("[run]\nsteps = 60\n[model]\nname = \"gpt2\"\n");
  const LoadedConfig loaded = load_config({.file = file.path(), .set = {"run.tokens=1M", "model.config=c.json"}});
  EXPECT_EQ(loaded.config.run.steps, 0);
  EXPECT_EQ(loaded.config.run.tokens, 1'000'000);
  EXPECT_EQ(loaded.config.model.name, "");
  EXPECT_EQ(loaded.config.model.config, "c.json");
  const LoadedConfig both = load_config({.set = {"run.steps=5", "run.tokens=10"}});
  EXPECT_EQ(both.config.run.steps, 5);
  EXPECT_EQ(both.config.run.tokens, 10);
}

TEST(RunConfig, AllProblemsOfAllSourcesAreReported) {
  const TemporaryFile file("[parallel]\ndpp = 2\ntp = \"two\"\n[optimzer]\nlr = 1\n");
  const LoadedConfig loaded = load_config({.file = file.path(), .set = {"batch.micro=0"}, .flags = {"nonsense"}});
  ASSERT_EQ(loaded.errors.size(), 5u) << errors_of(loaded);
  EXPECT_EQ(loaded.errors[3].message(), "--set batch.micro: 0 is not an integer from 1 to 1048576 (use 1)");
}

TEST(RunConfig, CompleteFileReadsBackToTheSame) {
  const RunConfig defaults;
  EXPECT_EQ(parsed(to_toml(defaults)), defaults);

  RunConfig odd;
  odd.run.name = "tab\there \"quoted\" 'single' back\\slash\nline \xE4\xB8\xAD";
  odd.data.train = "\x01\x7f";
  odd.run.tokens = 999'999'999'999'999'999;
  odd.run.seed = std::numeric_limits<int64_t>::max();
  odd.optimizer.lr = 0.1 + 0.2;
  odd.optimizer.eps = 5e-324;
  odd.optimizer.weight_decay = 1e300;
  odd.optimizer.betas = {1.0 / 3.0, 0.0};
  odd.method.targets = {"a\"b", "", "c"};
  odd.recompute.tensors = {};
  odd.precision.params = DType::kFloat16;
  odd.precision.optimizer_state = OptimizerStateKind::kBf16;
  odd.parallel.schedule = ScheduleKind::kVMin;
  odd.parallel.sp = true;
  odd.limits.memory = (int64_t{1} << 62) + 1;
  odd.log.level = LogLevel::kQuiet;
  const std::string text = to_toml(odd);
  EXPECT_EQ(parsed(text), odd);
  EXPECT_EQ(to_toml(parsed(text)), text);
}

// toml++ has no double for an integer beyond 2^53.
TEST(RunConfig, AWholeNumberIsAnyNumber) {
  EXPECT_EQ(with("optimizer.clip=2").optimizer.clip, 2.0);
  EXPECT_EQ(with("optimizer.clip=9894000000000000").optimizer.clip, 9.894e15);
  EXPECT_EQ(with("optimizer.clip=9223372036854775807").optimizer.clip, 0x1p63);
}

// Every key, set to something else than its default, is written and read: a field missing from the table would be lost.
TEST(RunConfig, EveryKeyChangesTheConfiguration) {
  const RunConfig defaults;
  for (const ConfigKey& key : config_keys()) {
    RunConfig changed;
    const FieldRef field = key.field(changed);
    if (const auto* b = std::get_if<bool*>(&field)) **b = !**b;
    if (const auto* i = std::get_if<int*>(&field)) **i += **i < key.range.max ? 1 : -1;
    if (const auto* i = std::get_if<int64_t*>(&field)) **i += 1;
    if (const auto* d = std::get_if<double*>(&field)) **d = **d / 2 + 0.125;
    if (const auto* s = std::get_if<std::string*>(&field)) **s += "x";
    if (const auto* l = std::get_if<StringList*>(&field)) (*l)->push_back("x");
    if (const auto* p = std::get_if<NumberPair*>(&field)) (**p)[1] = 0.5;
    if (const auto* t = std::get_if<OptionalDType*>(&field)) **t = DType::kFloat16;
    if (const auto* e = std::get_if<EnumRef>(&field)) *e->index = *e->index == 0 ? 1 : 0;
    if (const auto* s = std::get_if<SizeRef>(&field)) *s->bytes += 1;
    if (const auto* n = std::get_if<CountRef>(&field)) *n->count += 1;
    if (const auto* s = std::get_if<StagesRef>(&field)) *s->stages = {.cut = StageCut::kListed, .layers = {1, 0, 2}};
    EXPECT_FALSE(changed == defaults) << key.path();
    EXPECT_TRUE(parsed(to_toml(changed)) == changed) << key.path();
  }
}

TEST(RunConfig, DefaultsAreInTheirRanges) { EXPECT_EQ(errors_of(parse_config(to_toml(RunConfig{}), "defaults")), ""); }

TEST(RunConfig, ReferencePageIsUpToDate) {
  std::ifstream file(std::string(FIVEFOLD_SOURCE_DIR) + "/docs/configuration.md");
  std::ostringstream text;
  text << file.rdbuf();
  const std::string fresh = testing::TempDir() + "/configuration.md";
  if (text.str() != config_reference()) std::ofstream(fresh) << config_reference();
  EXPECT_TRUE(text.str() == config_reference()) << "docs/configuration.md is out of date: replace it by " << fresh;
}

// A value that equals the default is set as well; a later source is the stronger one.
TEST(RunConfig, SaysWhichKeysWereSetAndBySource) {
  const TemporaryFile file("[parallel]\ntp = 1\ndp = 4\n[batch]\nmicro = 2\n");
  const LoadedConfig loaded =
      load_config({.file = file.path(), .set = {"parallel.dp=8"}, .flags = {"batch.micro=4", "batch.global=64"}});
  ASSERT_TRUE(loaded.errors.empty());
  EXPECT_EQ(loaded.keys, (std::map<std::string, KeySource>{{"batch.global", KeySource::kFlag},
                                                           {"batch.micro", KeySource::kFlag},
                                                           {"parallel.dp", KeySource::kSetting},
                                                           {"parallel.tp", KeySource::kFile}}));
}

}  // namespace
}  // namespace fivefold
