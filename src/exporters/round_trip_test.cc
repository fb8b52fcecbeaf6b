// Exporting a plan and importing the files gives the plan back, but for the keys that the export says it cannot
// express.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

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

// TARGET-WHAT.toml; tests/exporters/target_parsers.py hands the same plans to the targets' own parsers.
TEST(RoundTrip, GivesThePlanBack) {
  int plans = 0;
  for (const auto& file : std::filesystem::directory_iterator(FIVEFOLD_EXPORT_PLANS)) {
    const std::string name = file.path().stem().string(), target = name.substr(0, name.find('-'));
    SCOPED_TRACE(name);
    const auto* found = std::ranges::find(kForeignTargetNames, target);
    ASSERT_NE(found, std::end(kForeignTargetNames));
    std::ifstream stream(file.path());
    std::stringstream text;
    text << stream.rdbuf();
    expect_round_trip(static_cast<ForeignTarget>(found - std::begin(kForeignTargetNames)), text.str());
    ++plans;
  }
  EXPECT_GE(plans, 12);
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
