#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/text.h"
#include "spec/run_config_io.h"
#include "spec/run_config_keys.h"

namespace fivefold {
namespace {

RunConfig parsed(std::string_view toml) {
  const LoadedConfig loaded = parse_config(toml, "run.toml");
  for (const Error& error : loaded.errors) ADD_FAILURE() << error.message();
  return loaded.config;
}

// Messages of a source, one per line.
std::string errors_of(const LoadedConfig& loaded) {
  std::vector<std::string> messages;
  for (const Error& error : loaded.errors) messages.push_back(error.message());
  return join(messages, "\n");
}

std::string set_error(const std::string& setting) { return errors_of(load_config({.set = {setting}})); }
RunConfig with(const std::string& setting) {
  const LoadedConfig loaded = load_config({.set = {setting}});
  EXPECT_EQ(errors_of(loaded), "");
  return loaded.config;
}

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

struct WrongFile {
  const char* toml;
  const char* message;
};

constexpr WrongFile kWrongFiles[] = {
    {"[parallel]\ndpp = 2", "run.toml:2: parallel.dpp: unknown key (did you mean parallel.dp?)"},
    {"[parallel]\nschedul = \"1f1b\"", "run.toml:2: parallel.schedul: unknown key (did you mean parallel.schedule?)"},
    {"[batch]\nsteps = 5", "run.toml:2: batch.steps: unknown key (did you mean run.steps?)"},
    {"[run]\nlearning_rate_of_the_optimizer = 1",
     "run.toml:2: run.learning_rate_of_the_optimizer: unknown key ([run] has name, directory, steps, tokens, seed, "
     "validate_every, compare_replicas_every)"},
    {"[paralel]\ndp = 2", "run.toml:1: [paralel]: unknown section (did you mean [parallel]?)"},
    {"[x.y]\nz = 1",
     "run.toml:1: [x]: unknown section (sections: run, model, method, hardware, parallel, batch, precision, recompute, "
     "optimizer, lr, data, checkpoint, limits, comm, log)"},
    {"dp = 2", "run.toml:1: dp: unknown key outside of any section (did you mean parallel.dp?)"},
    {"parallel = 2", "run.toml:1: parallel: is a section, not a key (write [parallel])"},
    {"[[parallel]]\ndp = 2", "run.toml:1: parallel: is a section, not a key (write [parallel])"},
    {"[parallel]\ndp = \"two\"", "run.toml:2: parallel.dp: \"two\" is not an integer from 1 to 1048576 (default: 1)"},
    {"[parallel]\ndp = 2.0", "run.toml:2: parallel.dp: 2.0 is not an integer from 1 to 1048576 (default: 1)"},
    {"[parallel]\ndp = 0", "run.toml:2: parallel.dp: 0 is not an integer from 1 to 1048576 (use 1)"},
    {"[parallel]\ndp = -1", "run.toml:2: parallel.dp: -1 is not an integer from 1 to 1048576 (use 1)"},
    {"[parallel]\ndp = 4294967297",
     "run.toml:2: parallel.dp: 4294967297 is not an integer from 1 to 1048576 (use 1048576)"},
    {"[parallel]\nzero = 4", "run.toml:2: parallel.zero: 4 is not an integer from 0 to 3 (use 3)"},
    {"[parallel]\nsp = 1", "run.toml:2: parallel.sp: 1 is not true or false (default: false)"},
    {"[parallel]\ndp = [2]", "run.toml:2: parallel.dp: a list is not an integer from 1 to 1048576 (default: 1)"},
    {"[parallel.dp]\nx = 2", "run.toml:1: parallel.dp: a table is not an integer from 1 to 1048576 (default: 1)"},
    {"[run]\nseed = -1", "run.toml:2: run.seed: -1 is not an integer of at least 0 (use 0)"},
    {"[run]\nname = 5", "run.toml:2: run.name: 5 is not text (write it in quotes)"},
    {"[run]\nname = 2024-01-01", "run.toml:2: run.name: 2024-01-01 is not text (write it in quotes)"},
    {"[run]\ntokens = \"12Q\"",
     "run.toml:2: run.tokens: \"12Q\" is not a count, for example 2000000 or 300B (default: 0)"},
    {"[run]\ntokens = \"1e30T\"",
     "run.toml:2: run.tokens: \"1e30T\" is not a count, for example 2000000 or 300B (default: 0)"},
    {"[run]\ntokens = 0.5", "run.toml:2: run.tokens: 0.5 is not a count, for example 2000000 or 300B (default: 0)"},
    {"[method]\nkind = \"Lora\"",
     "run.toml:2: method.kind: \"Lora\" is not one of full, lora, qlora (did you mean lora?)"},
    {"[method]\ntargets = \"q_proj\"",
     "run.toml:2: method.targets: \"q_proj\" is not a list of names (default: [\"all-linear\"])"},
    {"[method]\ntargets = [\"q_proj\", 3]",
     "run.toml:2: method.targets: a list is not a list of names (default: [\"all-linear\"])"},
    {"[method]\nalpha = 0", "run.toml:2: method.alpha: 0 is not a number above 0 (default: 32.0)"},
    {"[precision]\ncompute = \"float8_everywhere_please\"",
     "run.toml:2: precision.compute: \"float8_everywhere_please\" is not one of fp32, bf16, fp16, fp8 (default: "
     "\"bf16\")"},
    {"[precision]\ngrads = \"fp64\"",
     "run.toml:2: precision.grads: \"fp64\" is not one of auto, fp32, bf16, fp16 (default: \"auto\")"},
    {"[optimizer]\nlr = -1", "run.toml:2: optimizer.lr: -1 is not a number of at least 0 (use 0)"},
    {"[optimizer]\nlr = nan", "run.toml:2: optimizer.lr: nan is not a number of at least 0 (default: 0.0003)"},
    {"[optimizer]\nclip = inf", "run.toml:2: optimizer.clip: inf is not a number of at least 0 (default: 1.0)"},
    {"[optimizer]\nbetas = [0.9]",
     "run.toml:2: optimizer.betas: a list is not a pair, each a number from 0 to below 1 (default: [0.9, 0.95])"},
    {"[optimizer]\nbetas = [0.9, 1.0]",
     "run.toml:2: optimizer.betas: a list is not a pair, each a number from 0 to below 1 (default: [0.9, 0.95])"},
    {"[lr]\nmin_ratio = 1.5", "run.toml:2: lr.min_ratio: 1.5 is not a number from 0 to 1 (use 1)"},
    {"[limits]\nmemory = \"12 parsecs\"",
     "run.toml:2: limits.memory: \"12 parsecs\" is not a size, for example 600MiB or 24GB (use B, KB, MB, GB, TB "
     "(powers of 1000) or KiB, MiB, GiB, TiB)"},
    {"[parallel]\nstages = \"balance\"",
     "run.toml:2: parallel.stages: \"balance\" is not even, balanced, or a list of layers per chunk (did you mean "
     "balanced?)"},
    {"[parallel]\nstages = [4, -1]",
     "run.toml:2: parallel.stages: a list is not even, balanced, or a list of layers per chunk (default: \"even\")"},
    {"[limits]\nmemory = -5", "run.toml:2: limits.memory: -5 is not a size, for example 600MiB or 24GB (use 0)"},
    {"[comm]\ntimeout_s = 0", "run.toml:2: comm.timeout_s: 0 is not a number above 0 (default: 600.0)"},
};

TEST(RunConfig, WrongFilesAreExplained) {
  for (const WrongFile& wrong : kWrongFiles)
    EXPECT_EQ(errors_of(parse_config(wrong.toml, "run.toml")), wrong.message) << wrong.toml;
}

// The wording of syntax errors is toml++'s; the place is ours.
TEST(RunConfig, TextThatIsNotTomlNamesTheLine) {
  for (const char* text : {"[run]\nname = \"open", "[run]\nsteps = 1\nsteps = 2\n", "[run\n", "= 3",
                           "[run]\nname = \"\xff\"\n", "[run]\nsteps = 99999999999999999999\n"}) {
    const LoadedConfig loaded = parse_config(text, "run.toml");
    ASSERT_EQ(loaded.errors.size(), 1u) << text;
    EXPECT_EQ(loaded.errors[0].where.substr(0, 9), "run.toml:") << text;
    EXPECT_EQ(loaded.errors[0].problem.substr(0, 13), "is not TOML: ") << text;
  }
  EXPECT_EQ(parse_config("[run]\nsteps = 1\nsteps = 2\n", "run.toml").errors[0].where, "run.toml:3");
}

// Parts of a dotted key nest tables, which are destroyed by recursion.
TEST(RunConfig, DeepNestingIsRefused) {
  std::string key = "a";
  for (int i = 1; i < 200000; ++i) key += ".a";
  for (const std::string& text : {key + " = 1", "[" + key + "]", "x = " + std::string(200000, '[')}) {
    EXPECT_EQ(errors_of(parse_config("[run]\n" + text + "\n", "run.toml")),
              "run.toml:2: is nested deeper than 32 levels");
  }
}

// Cut anywhere, or with any byte replaced, a file is read or refused with a place.
TEST(RunConfig, DamagedFilesAreReadOrRefused) {
  const std::string text = to_toml(RunConfig{});
  const auto expect_places = [](const std::string& damaged) {
    for (const Error& error : parse_config(damaged, "run.toml").errors)
      EXPECT_EQ(error.where.substr(0, 9), "run.toml:") << damaged;
  };
  for (size_t i = 0; i < text.size(); i += 13) {
    expect_places(text.substr(0, i));
    for (const char byte : {'\0', '"', '[', '=', '\n', '9', '\xff'}) {
      std::string damaged = text;
      damaged[i] = byte;
      expect_places(damaged);
    }
  }
}

TEST(RunConfig, WrongSettingsAreExplained) {
  EXPECT_EQ(set_error("parallel.dp"), "--set parallel.dp: has no value (write KEY=VALUE, for example parallel.dp=2)");
  EXPECT_EQ(set_error("parallel.tpp=2"), "--set parallel.tpp: unknown key (did you mean parallel.tp?)");
  EXPECT_EQ(set_error("zero=2"), "--set zero: unknown key (did you mean parallel.zero?)");
  EXPECT_EQ(set_error("optimiser.lr=2"), "--set optimiser.lr: unknown key (did you mean optimizer.lr?)");
  EXPECT_EQ(set_error("parallel.dp=two"),
            "--set parallel.dp: \"two\" is not an integer from 1 to 1048576 (default: 1)");
  EXPECT_EQ(set_error("parallel.dp="), "--set parallel.dp: \"\" is not an integer from 1 to 1048576 (default: 1)");
  EXPECT_EQ(set_error("parallel.dp=1\nx=2"),
            "--set parallel.dp: \"1\nx=2\" is not an integer from 1 to 1048576 (default: 1)");
  EXPECT_EQ(set_error("run.name=\xff"), "--set run.name: \"\xff\" is not text (default: \"run\")") << "not UTF-8";
  EXPECT_EQ(set_error("optimizer.betas=0.9"),
            "--set optimizer.betas: a list is not a pair, each a number from 0 to below 1 (default: [0.9, 0.95])");
  EXPECT_EQ(set_error("=2"), "--set : unknown key (`docs/configuration.md` lists all keys)");
}

TEST(RunConfig, AMissingFileIsAnError) {
  EXPECT_EQ(errors_of(load_config({.file = "/nowhere/run.toml"})),
            "/nowhere/run.toml: does not exist (give the path of a TOML file)");
  EXPECT_EQ(errors_of(load_config({.file = "/"})), "/: is not a file (give the path of a TOML file)");
}

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
