// fivefold plan: from model, hardware and goal to ranked layouts.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/common_options.h"
#include "cli/machine.h"
#include "cli/plan_text.h"
#include "planner/scope.h"
#include "spec/model_named.h"
#include "spec/network.h"
#include "spec/run_config_io.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

enum class ListKind : uint8_t { kNothing, kModels, kGpus };

struct PlanOptions {
  CommonOptions common;
  std::string model, gpu, method, memory, out, cards, minimize, maximize;
  int gpus = 0;
  int64_t sequence = 0, global_batch = 0;
  ListKind list = ListKind::kNothing;
};

// The command's own flags as settings of the configuration.
std::vector<std::string> flag_settings(const PlanOptions& options) {
  std::vector<std::string> settings;
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) settings.push_back(fmt::format("{}={}", key, value));
  };
  const bool is_path = options.model.ends_with(".json") || options.model.find('/') != std::string::npos;
  add(is_path ? "model.config" : "model.name", options.model);
  add("hardware.name", options.gpu);
  add("method.kind", options.method);
  add("limits.memory", options.memory);
  if (options.sequence > 0) add("batch.sequence", std::to_string(options.sequence));
  if (options.global_batch > 0) add("batch.global", std::to_string(options.global_batch));
  return settings;
}

Result<std::vector<int>> parse_cards(const std::string& text) {
  std::vector<int> cards;
  for (const std::string& word : split(text, ',')) {
    const bool digits = !word.empty() && word.size() < 7 && word.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoi(word) < 1)
      return Error{"--cards", "\"" + word + "\" is no number of cards", "for example --cards 1,2,4,8"};
    cards.push_back(std::stoi(word));
  }
  return cards;
}

ExitCode print_list(ListKind kind) {
  const std::vector<std::string> names = kind == ListKind::kModels ? list_named_models() : list_named_gpus();
  for (const std::string& name : names) print(name + "\n");
  if (kind == ListKind::kGpus)
    for (const std::string& name : list_named_clusters()) print(name + "\n");
  return ExitCode::kDone;
}

// Keys that the configuration sets are not searched. The degree of data parallelism says how many ranks there are, and
// is one of these only as a setting of the command line.
FixedKeys fixed_keys(const std::map<std::string, KeySource>& keys) {
  const auto is_set = [&](const char* key) { return keys.contains(key); };
  const auto dp = keys.find("parallel.dp");
  return {.dp = dp != keys.end() && dp->second != KeySource::kFile,
          .tp = is_set("parallel.tp"),
          .sp = is_set("parallel.sp"),
          .cp = is_set("parallel.cp"),
          .cp_kind = is_set("parallel.cp_kind"),
          .pp = is_set("parallel.pp"),
          .vpp = is_set("parallel.vpp"),
          .schedule = is_set("parallel.schedule"),
          .zero = is_set("parallel.zero"),
          .shard_size = is_set("parallel.shard_size"),
          .micro = is_set("batch.micro"),
          .recompute = is_set("recompute.kind"),
          .every = is_set("recompute.every"),
          .compute = is_set("precision.compute"),
          .method = is_set("method.kind")};
}

// What the search needs, or every reason why it cannot start.
bool make_request(PlanOptions& options, SearchRequest& request, std::vector<Error>& errors) {
  options.common.flags = flag_settings(options);
  const LoadedConfig loaded = load_run_keys(options.common, errors);
  if (!errors.empty()) return false;
  request.base = loaded.config;
  request.fixed = fixed_keys(loaded.keys);
  Result<ModelSpec> model = load_model(request.base.model);
  if (!model.ok()) errors.push_back(model.error());
  const ParallelConfig& parallel = request.base.parallel;
  const int ranks = options.gpus > 0 ? options.gpus : parallel.dp * parallel.tp * parallel.cp * parallel.pp;
  RunConfig at_ranks = request.base;
  at_ranks.parallel = {.dp = options.minimize.empty() && options.cards.empty() ? ranks : 1};
  Result<HardwareSpec> hardware = load_run_hardware(at_ranks);
  if (!hardware.ok()) errors.push_back(hardware.error());
  if (model.ok()) {
    request.model = with_method(*std::move(model), request.base.method);
    const std::vector<Error> scope = planner_scope(request.model, request.base);
    errors.insert(errors.end(), scope.begin(), scope.end());
  }
  if (!errors.empty()) return false;
  request.hardware = *std::move(hardware);
  request.goal = options.minimize.empty() ? SearchGoal::kThroughput : SearchGoal::kFewestRanks;
  if (request.goal == SearchGoal::kThroughput) {
    request.rank_counts = {ranks};
    return true;
  }
  // Powers of two within a node, then whole nodes.
  const auto node = static_cast<int>(request.hardware.devices_per_node);
  const int most = options.gpus > 0 ? options.gpus : 1024;
  const std::optional<NetworkSpec>& simulated = request.hardware.simulated;
  for (int count = 1; count <= most; count = count < node ? std::min(2 * count, node) : count + node) {
    if (simulated && !check_num_ranks(*simulated, count).ok()) break;
    request.rank_counts.push_back(count);
  }
  return true;
}

Status write_run(const std::string& path, const Candidate& plan) {
  std::ofstream file(path, std::ios::binary);
  file << to_toml(plan.config.config);
  file.close();
  if (!file) return Error{path, "cannot be written", "name a file in a folder that exists"};
  return Ok{};
}

ExitCode run_cards(const PlanOptions& options, SearchRequest request) {
  const Result<std::vector<int>> cards = parse_cards(options.cards);
  if (!cards.ok()) {
    print_errors({cards.error()});
    return ExitCode::kBadInput;
  }
  if (request.hardware.simulated) {
    const int most = *std::max_element(cards->begin(), cards->end());
    if (const Status fits = check_num_ranks(*request.hardware.simulated, most); !fits.ok()) {
      print_errors({fits.error()});
      return ExitCode::kBadInput;
    }
  }
  std::vector<CardsRow> rows;
  bool any = false;
  request.goal = SearchGoal::kThroughput;
  std::vector<MethodKind> methods = {MethodKind::kFull, MethodKind::kLora, MethodKind::kQlora};
  if (request.fixed.method) methods = {request.base.method.kind};
  for (const int count : *cards) {
    for (const MethodKind method : methods) {
      request.rank_counts = {count};
      request.base.method.kind = method;
      rows.push_back({count, method, search_layouts(request)});
      any = any || (rows.back().result.ok() && !rows.back().result->plans.empty());
    }
  }
  if (options.common.json)
    print_json(cards_json(rows, request.hardware));
  else
    print(cards_text(request, rows));
  return any ? ExitCode::kDone : ExitCode::kDoesNotFit;
}

ExitCode run_plan(PlanOptions& options) {
  apply_common_options(options.common);
  if (options.list != ListKind::kNothing) return print_list(options.list);
  const auto start = std::chrono::steady_clock::now();
  std::vector<Error> errors;
  SearchRequest request;
  if (!make_request(options, request, errors)) {
    print_errors(errors);
    return ExitCode::kBadInput;
  }
  if (!options.cards.empty()) return run_cards(options, std::move(request));
  const Result<MethodSearch> search = search_methods(request);
  if (!search.ok()) {
    print_errors({search.error()});
    return ExitCode::kBadInput;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.common.json)
    print_json(plan_json(*search, seconds));
  else
    print(plan_text(*search));
  if (!search->answer().fits()) return ExitCode::kDoesNotFit;
  if (options.out.empty()) return ExitCode::kDone;
  if (const Status written = write_run(options.out, search->answer().result.plans[0]); !written.ok()) {
    print_errors({written.error()});
    return ExitCode::kRunFailed;
  }
  return ExitCode::kDone;
}

}  // namespace

RunCommand add_plan_command(CLI::App& app) {
  static const std::map<std::string, ListKind> lists = {{"models", ListKind::kModels}, {"gpus", ListKind::kGpus}};
  auto options = std::make_shared<PlanOptions>();
  add_common_options(app, options->common);
  app.add_option("--model", options->model, "a model by name, or the path of its config.json")
      ->option_text("NAME|PATH");
  app.add_option("--gpu", options->gpu, "a GPU or cluster by name, or a hardware file")->option_text("NAME|PATH");
  app.add_option("--gpus", options->gpus, "how many devices or ranks; with --minimize gpus: at most")
      ->check(CLI::Range(1, 1 << 20))
      ->option_text("N");
  app.add_option("--sequence", options->sequence, "tokens per sequence")->check(CLI::PositiveNumber)->option_text("S");
  app.add_option("--global-batch", options->global_batch, "sequences per step")
      ->check(CLI::PositiveNumber)
      ->option_text("B");
  app.add_option("--method", options->method, "full, lora or qlora; not set: full, or the first of these that fits")
      ->option_text("KIND");
  app.add_option("--memory", options->memory, "memory that a rank may use, for example 80GB")->option_text("SIZE");
  app.add_option("--minimize", options->minimize, "goal: the fewest devices")
      ->check(CLI::IsMember({"gpus"}))
      ->option_text("gpus");
  app.add_option("--maximize", options->maximize, "goal: tokens per second (the default)")
      ->check(CLI::IsMember({"throughput"}))
      ->option_text("throughput")
      ->excludes("--minimize");
  app.add_option("--cards", options->cards, "what fits on each number of devices")->option_text("1,2,4,8");
  app.add_option("--list", options->list, "print the known models or gpus")
      ->transform(CLI::CheckedTransformer(lists))
      ->option_text("models|gpus");
  app.add_option("--out", options->out, "write the best plan as a configuration that train runs")->option_text("FILE");
  return [options] { return run_plan(*options); };
}

}  // namespace fivefold
