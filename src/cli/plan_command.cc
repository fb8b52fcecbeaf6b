// fivefold plan: from model, hardware and goal to ranked layouts.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/common_options.h"
#include "cli/framework_plan.h"
#include "cli/machine.h"
#include "cli/output.h"
#include "cli/plan_text.h"
#include "planner/reduction_choice.h"
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
  std::string model, gpu, method, memory, out, cards, minimize, maximize, framework, tokens, deadline;
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
  add("framework.name", options.framework);
  add("run.tokens", options.tokens);
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
          .method = is_set("method.kind"),
          .ep = is_set("parallel.ep"),
          .etp = is_set("parallel.etp")};
}

// "14d", "36h".
Result<double> parse_deadline(const std::string& text) {
  if (text.empty()) return 0.0;
  double number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (status != std::errc() || !(number > 0) || (unit != "d" && unit != "h"))
    return Error{"--deadline", "\"" + text + "\" is no time", "for example --deadline 14d, or 36h"};
  return number * (unit == "d" ? 86400 : 3600);
}

// The input of a plan for another framework; nothing: fivefold's engine runs it, or `errors` says what is wrong.
std::optional<FrameworkPlanInput> framework_input(const PlanOptions& options, const LoadedConfig& loaded,
                                                  std::vector<Error>& errors) {
  FrameworkPlanInput input;
  input.base = loaded.config;
  input.fixed = fixed_keys(loaded.keys);
  Result<ModelSpec> model = load_model(input.base.model);
  RunConfig one = input.base;
  one.parallel = {};
  Result<HardwareSpec> hardware = load_run_hardware(one);
  if (!model.ok() || !hardware.ok()) return std::nullopt;
  const ParallelConfig& parallel = input.base.parallel;
  const bool open = options.gpus == 0 && !options.minimize.empty();
  if (!options.cards.empty()) {
    const Result<std::vector<int>> cards = parse_cards(options.cards);
    input.gpus = cards.ok() ? *std::max_element(cards->begin(), cards->end()) : 1;
  }
  input.gpus = input.gpus > 1     ? input.gpus
               : options.gpus > 0 ? options.gpus
               : open             ? 0
                                  : parallel.dp * parallel.tp * parallel.cp * parallel.pp;
  if (!loaded.keys.contains("framework.name")) {
    input.base.framework.name = chosen_framework(*model, input.base, *hardware, input.gpus);
    if (input.base.framework.name != Framework::kFivefold)
      input.assumed.emplace_back(
          "for Megatron-LM, since fivefold's own engine does not run this model, or not on several nodes "
          "(--framework)");
  }
  if (input.base.framework.name == Framework::kFivefold) return std::nullopt;
  input.model = *std::move(model);
  input.hardware = *std::move(hardware);
  input.goal = options.minimize.empty()     ? PlanGoal::kThroughput
               : options.minimize == "gpus" ? PlanGoal::kFewestGpus
                                            : PlanGoal::kCost;
  input.tokens = static_cast<double>(input.base.run.tokens);
  const Result<double> deadline = parse_deadline(options.deadline);
  if (!deadline.ok())
    errors.push_back(deadline.error());
  else
    input.deadline_s = *deadline;
  if (input.goal == PlanGoal::kCost && input.tokens == 0)
    errors.push_back({"--tokens", "a cost needs to know how long the run is", "for example --tokens 1T"});
  input.sequence_is_set = loaded.keys.contains("batch.sequence");
  input.json = options.common.json;
  input.out = options.out;
  return input;
}

// What the best plan's owner should know: what is padded, replicated, uneven or repeated.
void print_notes(const MethodResult& answer) {
  const ResolvedConfig& best = answer.result.plans[0].config;
  const ModelSpec model = with_method(answer.request.model, answer.request.base.method);
  for (const Error& note : layout_notes(model, best.config)) print_note(note);
  const auto reduction = reduction_note(model, build_inventory(model), best, answer.request.hardware);
  if (reduction) print_note(*reduction);
}

// What the search needs, or every reason why it cannot start.
bool make_request(const PlanOptions& options, const LoadedConfig& loaded, SearchRequest& request,
                  std::vector<Error>& errors) {
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
  options.common.flags = flag_settings(options);
  const LoadedConfig loaded = load_run_keys(options.common, errors);
  const auto refuse = [&errors] {
    print_errors(errors);
    return ExitCode::kBadInput;
  };
  if (!errors.empty()) return refuse();
  std::optional<FrameworkPlanInput> input = framework_input(options, loaded, errors);
  if (!errors.empty()) return refuse();
  if (input && options.cards.empty()) return plan_framework(*std::move(input));
  if (input) {
    const Result<std::vector<int>> cards = parse_cards(options.cards);
    if (cards.ok()) return plan_framework_cards(*std::move(input), *cards);
    errors.push_back(cards.error());
    return refuse();
  }
  if (options.minimize == "cost") {
    errors.push_back({"--minimize", "cost is planned for other frameworks than fivefold's own engine",
                      "for example --framework megatron"});
    return refuse();
  }
  SearchRequest request;
  if (!make_request(options, loaded, request, errors)) return refuse();
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
  print_notes(search->answer());
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
  app.add_option("--framework", options->framework,
                 "whose code trains: fivefold, megatron, nanotron, fsdp2, deepspeed or hf")
      ->option_text("NAME");
  app.add_option("--tokens", options->tokens, "how long the run is, for example 1T")->option_text("COUNT");
  app.add_option("--minimize", options->minimize, "goal: the fewest devices, or the least cost of --tokens")
      ->check(CLI::IsMember({"gpus", "cost"}))
      ->option_text("gpus|cost");
  app.add_option("--deadline", options->deadline, "with --minimize cost: by when, for example 14d")
      ->option_text("TIME");
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
