// Any setting of the parallel keys is either refused before a rank starts, with a hint that leads to a layout that is
// not, or runs: random configurations on tiny models.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <regex>

#include "cli/random_batch.h"
#include "spec/validate.h"
#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

constexpr int kHints = 4000, kSteps = 120, kParts = 4;
constexpr int kMostRanks = 16;  // threads of a test
constexpr int kMostHints = 12;  // to be followed from one configuration

using Settings = std::map<std::string, std::string>;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }
  std::string number(std::initializer_list<int> values) { return std::to_string(one_of(values)); }

 private:
  std::mt19937 engine_;
};

// Mostly plain values, some odd ones; the combination is rarely legal.
Settings draw(Random& random) {
  Settings s;
  s["parallel.dp"] = random.number({1, 1, 1, 2, 2, 3, 4, 5});
  s["parallel.tp"] = random.number({1, 1, 1, 2, 2, 3, 4, 5, 8});
  s["parallel.sp"] = random.one_of({"false", "true"});
  s["parallel.cp"] = random.number({1, 1, 1, 2, 2, 3, 4, 5});
  s["parallel.cp_kind"] = random.one_of({"ring", "all_gather", "ulysses"});
  s["parallel.pp"] = random.number({1, 1, 1, 2, 2, 3, 4, 7});
  s["parallel.vpp"] = random.number({1, 1, 1, 2, 2, 3, 4});
  s["parallel.schedule"] = random.one_of(
      {"naive", "gpipe", "1f1b", "1f1b", "interleaved", "zb1p", "zb2p", "zbv", "v-half", "v-min", "dualpipev"});
  s["parallel.stages"] = random.one_of({"even", "even", "even", "even", "balanced", "1,1", "3,1", "0,4,0", "2,1,1,0"});
  s["parallel.reduce"] = random.one_of({"microbatch", "microbatch", "microbatch", "step"});
  s["parallel.bucket_layers"] = random.number({1, 1, 1, 2, 3, 7});
  s["parallel.zero"] = random.number({0, 1, 2, 3});
  s["parallel.shard_size"] = random.number({0, 0, 0, 1, 2, 3, 4});
  s["parallel.prefetch"] = random.number({0, 1, 1, 2, 5});
  s["parallel.ep"] = random.number({1, 1, 1, 1, 1, 1, 1, 1, 1, 2});
  s["parallel.etp"] = random.number({1, 1, 1, 1, 1, 1, 1, 1, 1, 2});
  s["batch.micro"] = random.number({1, 1, 2, 3});
  s["batch.global"] = random.number({0, 0, 4, 6, 8, 12, 16, 17});
  s["batch.sequence"] = random.number({1, 2, 7, 13, 15, 16, 16, 17});
  s["batch.packing"] = random.one_of({"concatenate", "documents"});
  s["batch.loss_chunk"] = random.number({1, 3, 8, 512});
  s["recompute.kind"] = random.one_of({"none", "full", "selective"});
  if (s["recompute.kind"] == "selective")
    s["recompute.tensors"] = random.one_of({"attention.qkv", "attention.out", "attention.qkv,attention.out"});
  s["recompute.every"] = random.number({1, 2, 3, 5});
  s["precision.compute"] = random.one_of({"fp32", "fp32", "bf16"});
  s["optimizer.kind"] = random.one_of({"sgd", "adamw"});
  s["comm.rendezvous"] = random.one_of({"false", "true"});
  return s;
}

ModelSpec draw_model(Random& random) {
  ModelSpec model =
      tiny_model(random.one_of({TinyKind::kLlama, TinyKind::kTiedQwen3, TinyKind::kGpt2}), random.one_of({1, 2, 4, 5}));
  if (random.below(4) == 0) model.vocab = random.one_of({9, 50, 67});
  if (random.below(4) == 0)
    for (LayerSpec& layer : model.layers) layer.mlp.ffn = random.one_of({5, 30, 64});
  return model;
}

RunConfig config_of(const Settings& settings) {
  ConfigSources sources;
  for (const auto& [key, value] : settings) sources.set.push_back(key + "=" + value);
  sources.set.insert(sources.set.end(), {"parallel.threads=1", "optimizer.clip=1", "comm.timeout_s=60"});
  const LoadedConfig loaded = load_config(sources);
  FIVEFOLD_CHECK(loaded.errors.empty(), to_string(loaded.errors));
  return loaded.config;
}

// As `train` asks, beside its data and length.
std::vector<Error> problems(const ModelSpec& model, const RunConfig& config) {
  std::vector<Error> errors = validate_layout(model, config);
  if (errors.empty()) errors = validate_engine(model, config);
  return errors;
}

std::string text(const Settings& settings) {
  std::string all;
  for (const auto& [key, value] : settings) all += key + "=" + value + " ";
  return all;
}

// The settings of a hint's first way out, "use KEY = VALUE with KEY = VALUE", or "use VALUE" for the error's own key.
Settings suggestion(const Error& error) {
  static const std::regex kNamed(R"((\w+) = (\[[\d, ]*\]|[\w-]+))"), kBare(R"(^use (\d+))");
  const std::string section = error.where.substr(0, error.where.find('.'));
  const std::string way = error.hint.substr(0, error.hint.find(", or "));
  Settings settings;
  for (auto match = std::sregex_iterator(way.begin(), way.end(), kNamed); match != std::sregex_iterator(); ++match) {
    const std::string key = (*match)[1];
    const bool batch = key == "global" || key == "micro" || key == "sequence";
    std::string value = (*match)[2];
    std::erase_if(value, [](char c) { return c == '[' || c == ']'; });  // of a list
    settings[(batch ? "batch" : section == "batch" ? "parallel" : section) + "." + key] = value;
  }
  std::smatch bare;
  if (settings.empty() && std::regex_search(way, bare, kBare)) settings[error.where] = bare[1];
  return settings;
}

// Follows hints until nothing is wrong, each of which must end the error that it is for. Nothing if there is no way:
// then an example of the fault is in `faults`, by the key of the error.
std::optional<Settings> follow_hints(const ModelSpec& model, Settings settings, Settings& faults) {
  std::string way = text(settings);
  const auto fault = [&](const Error& error, const char* what) {
    faults.try_emplace(error.where + " " + what, way);
    return std::nullopt;
  };
  std::vector<Error> errors = problems(model, config_of(settings));
  for (int i = 0; !errors.empty(); ++i) {
    const Error error = errors.front();
    way += "\n  " + error.message();
    const Settings next = suggestion(error);
    if (next.empty()) return fault(error, "names no setting");
    if (i == kMostHints) return fault(error, "comes again and again");
    for (const auto& [key, value] : next) settings[key] = value;
    errors = problems(model, config_of(settings));
    for (const Error& left : errors)
      if (left.message() == error.message()) return fault(error, "is not helped by its hint");
  }
  return settings;
}

TEST(ValidLayouts, HintsLeadToALegalLayout) {
  Random random(1);
  std::map<std::string, int> refused;
  Settings faults;
  for (int i = 0; i < kHints; ++i) {
    const ModelSpec model = draw_model(random);
    const Settings settings = draw(random);
    for (const Error& error : problems(model, config_of(settings))) ++refused[error.where];
    follow_hints(model, settings, faults);
  }
  for (const auto& [what, example] : faults) ADD_FAILURE() << what << ": " << example;
  for (const char* key : {"parallel.tp", "parallel.cp", "parallel.pp", "parallel.vpp", "parallel.ep", "parallel.etp",
                          "parallel.shard_size", "parallel.stages", "parallel.reduce", "parallel.bucket_layers",
                          "batch.global", "batch.sequence", "recompute.every"})
    EXPECT_GT(refused[key], 20) << key << " was hardly ever wrong";
}

class RandomConfigurations : public ::testing::TestWithParam<int> {};

// What nothing is wrong with takes steps, with the loss of one rank, whether it was drawn so or hints led to it.
TEST_P(RandomConfigurations, Run) {
  Random random(static_cast<uint32_t>(100 + GetParam()));
  for (int done = 0; done < kSteps / kParts;) {
    const ModelSpec model = draw_model(random);
    Settings faults;
    const auto legal = follow_hints(model, draw(random), faults);
    ASSERT_TRUE(legal) << ::testing::PrintToString(faults);
    const RunConfig config = config_of(*legal);
    const ParallelConfig& parallel = config.parallel;
    if (parallel.dp * parallel.tp * parallel.cp * parallel.pp > kMostRanks) continue;
    SCOPED_TRACE(model.name + " " + text(*legal));
    ProbeRequest request;
    request.model = model;
    request.config = resolve(config, model).value();
    request.batch = random_batch(request.config, model.vocab, RandomTargets::kUneven);
    request.updates = 1;
    std::fprintf(stderr, "%s %s\n", model.name.c_str(), text(*legal).c_str());  // the last one, should the process die
    const ProbeResult result = probe(request);
    Settings plain = *legal;
    for (const char* key : {"dp", "tp", "cp", "pp", "vpp", "ep", "etp"}) plain[std::string("parallel.") + key] = "1";
    plain["parallel.sp"] = "false";
    plain["parallel.stages"] = "even";
    plain["parallel.shard_size"] = "0";
    plain["parallel.schedule"] = "1f1b";
    plain["batch.global"] = std::to_string(request.batch.rows);
    plain["batch.micro"] = "1";
    ProbeRequest alone = request;
    alone.config = resolve(config_of(plain), model).value();
    const ProbeResult one = probe(alone);
    const double bound = config.precision.compute == ComputeKind::kFp32 ? 1e-5 : 2e-2;
    EXPECT_EQ(result.valid_tokens, one.valid_tokens);
    EXPECT_NEAR(result.loss, one.loss, bound * std::max(1.0, one.loss));
    EXPECT_NEAR(result.grad_norm, one.grad_norm, 5 * bound * one.grad_norm);
    if (HasFailure()) return;
    ++done;
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, RandomConfigurations, ::testing::Range(0, kParts));

}  // namespace
}  // namespace fivefold::testing
