#include "cli/framework_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/framework_text.h"
#include "cli/machine.h"
#include "cli/output.h"
#include "planner/goodput.h"
#include "planner/profiles/framework_config.h"
#include "planner/scope.h"
#include "spec/run_config_io.h"

namespace fivefold {
namespace {

// Tokens of a sequence when nobody says: what models of a few billion parameters and more are pretrained with first.
constexpr int64_t kSequence = 4096;
constexpr int kMostGpus = 16384;
constexpr int kMostCardsOfMachine = 16;
constexpr int kMostTimes = 64;

ExitCode refuse(const Error& error) {
  print_errors({error});
  return ExitCode::kBadInput;
}

// Powers of two within a node, whole nodes up to 16 of them, then twice as many each time.
std::vector<int> gpu_counts(int node, int most) {
  std::vector<int> counts;
  for (int n = 1; n <= most; n = n < node ? std::min(2 * n, node) : n < 16 * node ? n + node : 2 * n)
    counts.push_back(n);
  return counts;
}

// Hours of training, failures included, and what they cost.
struct Price {
  double hours = 0, dollars = 0;
};
Price price_of(const FrameworkPlan& plan, const HardwareSpec& hardware, double tokens) {
  const int64_t gpus = plan.run.dp * plan.run.tp * plan.run.cp * plan.run.pp;
  Price price;
  price.hours = tokens / plan.tokens_per_s / 3600;
  price.dollars = price.hours * hardware.device.price_per_hour.value * static_cast<double>(gpus);
  return price;
}

class Planner {
 public:
  explicit Planner(FrameworkPlanInput& input) : input_(input) {}

  // REQUIRES: called once, before any search.
  void choose_sequence() {
    if (!input_.sequence_is_set) {
      const int64_t most = input_.model.max_positions > 0 ? input_.model.max_positions : kSequence;
      input_.base.batch.sequence = std::min(kSequence, most);
      input_.assumed.push_back(
          fmt::format("sequences of {} tokens (assumed; set --sequence)", input_.base.batch.sequence));
    }
  }

  Result<FrameworkAnswer> plan() {
    switch (input_.goal) {
      case PlanGoal::kThroughput:
        return search(input_.gpus);
      case PlanGoal::kFewestGpus:
        return fewest();
      case PlanGoal::kCost:
        return cheapest();
    }
    FIVEFOLD_CHECK(false);
  }

  Result<FrameworkAnswer> search(int gpus) {
    FrameworkAnswer answer;
    answer.assumed = input_.assumed;
    answer.base = input_.base;
    answer.tokens = input_.tokens;
    FrameworkRequest& request = answer.request;
    FIVEFOLD_ASSIGN(request.hardware, with_network(input_.hardware, gpus, answer.assumed));
    request.global_batch = input_.base.batch.global;
    FIVEFOLD_ASSIGN(request.base, base_run(request.hardware));
    request.fixed = input_.fixed;
    request.gpus = gpus;
    FIVEFOLD_ASSIGN(answer.result, search_framework(request));
    return answer;
  }

  // Of twice, four times, ... as many GPUs the first on which something fits; nothing: none up to kMostTimes as many.
  std::optional<FrameworkPlan> with_more_gpus(int gpus) {
    for (int times = 2; times <= kMostTimes; times *= 2) {
      const Result<FrameworkAnswer> found = search(times * gpus);
      if (found.ok() && !found->result.plans.empty()) return found->result.plans[0];
    }
    return std::nullopt;
  }

 private:
  // What the search does not choose, and the values of fixed keys: as a run of one GPU, which any framework has.
  Result<FrameworkRun> base_run(const HardwareSpec& hardware) const {
    RunConfig alone = input_.base;
    alone.parallel = {.zero = alone.framework.name == Framework::kFsdp2 ? 3 : 1};
    alone.batch.global = 0;
    FIVEFOLD_ASSIGN(FrameworkRun run, framework_run(input_.model, alone, hardware));
    const ParallelConfig& parallel = input_.base.parallel;
    run.tp = parallel.tp, run.sp = parallel.sp, run.cp = parallel.cp, run.ep = parallel.ep;
    run.pp = parallel.pp, run.vpp = parallel.vpp, run.dp = parallel.dp;
    if (input_.fixed.etp) run.expert_tp.set(parallel.etp);
    if (input_.fixed.zero) run.zero = parallel.zero;
    run.shard_size = parallel.shard_size;
    return run;
  }

  Result<FrameworkAnswer> fewest() {
    std::optional<Result<FrameworkAnswer>> last;
    for (const int gpus : gpu_counts(static_cast<int>(input_.hardware.devices_per_node), input_.gpus)) {
      Result<FrameworkAnswer> found = search(gpus);
      if (found.ok() && !found->result.plans.empty()) return found;
      if (!last || found.ok()) last = std::move(found);
    }
    return *std::move(last);
  }

  // Of the counts that are through by the deadline the one that costs least.
  Result<FrameworkAnswer> cheapest() {
    std::optional<FrameworkAnswer> best;
    double least = std::numeric_limits<double>::infinity(), shortest = least;
    for (const int gpus : gpu_counts(static_cast<int>(input_.hardware.devices_per_node), input_.gpus)) {
      Result<FrameworkAnswer> found = search(gpus);
      if (!found.ok() || found->result.plans.empty()) continue;
      const Price price = price_of(found->result.plans[0], found->request.hardware, input_.tokens);
      shortest = std::min(shortest, price.hours);
      if (input_.deadline_s > 0 && price.hours * 3600 > input_.deadline_s) continue;
      if (price.dollars >= least) continue;
      least = price.dollars;
      best = *std::move(found);
    }
    if (best) return *std::move(best);
    if (shortest < std::numeric_limits<double>::infinity())
      return Error{"--deadline",
                   fmt::format("the quickest of up to {} GPUs takes {:.1f} days", input_.gpus, shortest / 24),
                   fmt::format("use {:.0f}d, or more GPUs", std::ceil(shortest / 24))};
    return search(input_.gpus);
  }

  FrameworkPlanInput& input_;
};

bool has_adapters(Framework framework) { return framework == Framework::kHf || framework == Framework::kFsdp2; }

std::string_view name_of(MethodKind method) { return method == MethodKind::kLora ? "LoRA" : "QLoRA"; }

// Where full training does not fit and nobody insists on it: LoRA, then QLoRA, if that fits.
void try_adapters(FrameworkPlanInput& input, Planner& planner, Result<FrameworkAnswer>& answer) {
  if (!has_adapters(input.base.framework.name) || input.fixed.method || input.base.method.kind != MethodKind::kFull)
    return;
  const FrameworkPlan smallest = *answer->result.smallest;
  for (const MethodKind method : {MethodKind::kLora, MethodKind::kQlora}) {
    input.base.method.kind = method;
    Result<FrameworkAnswer> adapter = planner.plan();
    if (!adapter.ok() || adapter->result.plans.empty()) continue;
    adapter->assumed.push_back(fmt::format(
        "full training does not fit: it needs {} of {} at the least; planned instead: {} of rank {} (--method full "
        "keeps to it)",
        format_bytes(smallest.needed), format_bytes(smallest.capacity), name_of(method), input.base.method.rank));
    answer = std::move(adapter);
    return;
  }
  input.base.method.kind = MethodKind::kFull;
}

Status write_plan(const FrameworkAnswer& answer, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << to_toml(framework_run_config(answer.result.plans[0].run, answer.base));
  file.close();
  if (!file) return Error{path, "cannot be written", "name a file in a folder that exists"};
  return Ok{};
}

}  // namespace

Framework chosen_framework(const ModelSpec& model, const RunConfig& base, const HardwareSpec& hardware, int gpus) {
  const bool imitates = !base.comm.simulate.empty();  // links: what fivefold's engine alone does
  if (hardware.device.cores > 0 || imitates || base.method.kind != MethodKind::kFull) return Framework::kFivefold;
  RunConfig split = base;
  split.parallel.tp = 2;
  const bool layers = planner_scope(model, split).empty();
  // Cards that are sold one by one are one machine.
  const int64_t node = hardware.devices_per_node == 1 ? kMostCardsOfMachine : hardware.devices_per_node;
  return layers && gpus <= node ? Framework::kFivefold : Framework::kMegatron;
}

Result<HardwareSpec> with_network(HardwareSpec hardware, int gpus, std::vector<std::string>& assumed) {
  if (gpus <= hardware.devices_per_node || hardware.network.bytes_per_s.known()) return hardware;
  std::optional<std::pair<std::string, HardwareSpec>> found;
  for (const std::string& name : list_named_clusters()) {
    const Result<HardwareSpec> cluster = load_hardware(name);
    if (!cluster.ok() || cluster->gpu != hardware.name || !cluster->network.bytes_per_s.known()) continue;
    if (!found || name.starts_with("dgx")) found.emplace(name, *cluster);
  }
  // Cards that are sold one by one.
  if (!found && hardware.devices_per_node == 1 && gpus <= kMostCardsOfMachine) {
    assumed.push_back(fmt::format("one machine of {} cards over {} (assumed)", gpus, hardware.node_link.name));
    hardware.devices_per_node = gpus;
    return hardware;
  }
  if (!found)
    return Error{"hardware.name",
                 fmt::format("{} GPUs are more than a node's {}, and no cluster of {} is known", gpus,
                             hardware.devices_per_node, hardware.name),
                 "name a cluster, or a hardware file with a [network]; `fivefold plan --list gpus`"};
  assumed.push_back(fmt::format("nodes and network of {} (assumed; name a cluster as --gpu)", found->first));
  return std::move(found->second);
}

ExitCode plan_framework(FrameworkPlanInput input) {
  const auto start = std::chrono::steady_clock::now();
  if (input.goal != PlanGoal::kThroughput && input.gpus == 0) input.gpus = kMostGpus;
  Planner planner(input);
  planner.choose_sequence();
  Result<FrameworkAnswer> answer = planner.plan();
  if (!answer.ok()) return refuse(answer.error());
  if (answer->result.plans.empty()) try_adapters(input, planner, answer);
  if (answer->result.plans.empty()) answer->with_more = planner.with_more_gpus(static_cast<int>(answer->request.gpus));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (input.json)
    print_json(framework_plan_json(*answer, seconds));
  else
    print(framework_plan_text(*answer));
  if (answer->result.plans.empty()) return ExitCode::kDoesNotFit;
  if (input.out.empty()) return ExitCode::kDone;
  const Status written = write_plan(*answer, input.out);
  return written.ok() ? ExitCode::kDone : refuse(written.error());
}

ExitCode plan_framework_cards(FrameworkPlanInput input, const std::vector<int>& cards) {
  const Framework framework = input.base.framework.name;
  std::vector<MethodKind> methods = {input.base.method.kind};
  if (!input.fixed.method && has_adapters(framework))
    methods = {MethodKind::kFull, MethodKind::kLora, MethodKind::kQlora};
  Planner planner(input);
  planner.choose_sequence();
  std::vector<FrameworkCardsRow> rows;
  bool any = false;
  for (const int count : cards)
    for (const MethodKind method : methods) {
      input.base.method.kind = method;
      rows.push_back({count, method, planner.search(count)});
      any = any || (rows.back().answer.ok() && !rows.back().answer->result.plans.empty());
    }
  if (input.json)
    print_json(framework_cards_json(rows));
  else
    print(framework_cards_text(input.model.name, input.hardware.device.name, input.base.batch.sequence, rows));
  return any ? ExitCode::kDone : ExitCode::kDoesNotFit;
}

}  // namespace fivefold
