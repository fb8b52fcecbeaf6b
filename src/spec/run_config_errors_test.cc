#include <gtest/gtest.h>

#include "spec/run_config_testing.h"

namespace fivefold {
namespace {

using namespace test;

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
     "run.toml:1: [x]: unknown section (sections: run, model, method, hardware, framework, parallel, batch, precision, "
     "recompute, "
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

}  // namespace
}  // namespace fivefold
