#include "planner/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/integer.h"
#include "base/text.h"
#include "planner/scope.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

// A batch of a size that models of a few billion parameters are trained with, when none is asked for; on a CPU one that
// a step of seconds gets through.
constexpr int64_t kTokensPerStepGpu = int64_t{1} << 19;
constexpr int64_t kTokensPerStepCpu = int64_t{1} << 14;
constexpr int64_t kMaxMicrobatch = 64;
constexpr double kEqualSpeed = 0.97;          // plans this near to the fastest are told apart by simplicity
constexpr double kWorthMemory = 1.05;         // memory is the wall when this much faster layouts do not fit
constexpr double kCommunicationBound = 0.25;  // share of the step

struct Draft {
  Candidate plan;
  int64_t bound = 0;      // states, saved activations and what is outside the tensors
  bool replayed = false;  // plan.ledger holds
  bool fits() const { return plan.ledger.peak_total <= plan.capacity; }
  int64_t least_bytes() const { return replayed ? plan.ledger.peak_total : bound; }
};

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

int64_t power_of_two_at_least(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

class LayoutSearch {
 public:
  LayoutSearch(const SearchRequest& request, int ranks)
      : request_(request), ranks_(ranks), inventory_(build_inventory(request.model)) {
    tokens_target_ = request.hardware.device.cores > 0 ? kTokensPerStepCpu : kTokensPerStepGpu;
  }

  SearchResult run() {
    enumerate();
    std::stable_sort(drafts_.begin(), drafts_.end(),
                     [](const Draft& a, const Draft& b) { return a.plan.tokens_per_s > b.plan.tokens_per_s; });
    collect_plans();
    result_.evaluated = evaluated_;
    explain_rest();
    if (result_.plans.empty())
      describe_obstacle();
    else
      result_.wall = wall();
    return std::move(result_);
  }

 private:
  // Sequences per rank and step; a power of two when the search may choose.
  int64_t rows_per_rank() const {
    const BatchConfig& batch = request_.base.batch;
    if (batch.global > 0) return batch.global / ranks_;
    return power_of_two_at_least(div_ceil(tokens_target_, batch.sequence * ranks_));
  }

  std::vector<ComputeKind> precisions() const {
    std::vector<ComputeKind> kinds{request_.base.precision.compute};
    if (request_.hardware.device.cores > 0 && !request_.base.precision.params)
      kinds.push_back(kinds[0] == ComputeKind::kBf16 ? ComputeKind::kFp32 : ComputeKind::kBf16);
    return kinds;
  }

  std::vector<int64_t> recompute_segments() const {
    const auto layers = static_cast<int64_t>(request_.model.layers.size());
    std::set<int64_t> segments{0, 1, 2,
                               4, 8, static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(layers))))};
    std::vector<int64_t> kept;
    for (const int64_t every : segments)
      if (every <= layers) kept.push_back(every);
    return kept;
  }

  void enumerate() {
    const int64_t rows = rows_per_rank();
    std::vector<std::pair<int, int64_t>> shardings{{0, 0}};
    for (int zero = 1; zero <= 3 && ranks_ > 1; ++zero)
      for (const int64_t shards : divisors(ranks_))
        if (shards > 1) shardings.emplace_back(zero, shards);
    for (const ComputeKind compute : precisions())
      for (const auto& [zero, shards] : shardings)
        for (const int64_t every : recompute_segments())
          for (const int64_t micro : divisors(rows))
            if (micro <= kMaxMicrobatch) consider(compute, zero, shards, every, micro, rows);
  }

  void consider(ComputeKind compute, int zero, int64_t shards, int64_t every, int64_t micro, int64_t rows) {
    RunConfig config = request_.base;
    config.precision.compute = compute;
    config.parallel.dp = ranks_;
    config.parallel.zero = zero;
    config.parallel.shard_size = static_cast<int>(shards);
    config.batch.micro = micro;
    config.batch.global = rows * ranks_;
    config.recompute.kind = every > 0 ? RecomputeKind::kFull : RecomputeKind::kNone;
    config.recompute.every = std::max<int64_t>(1, every);
    Result<ResolvedConfig> resolved = resolve(config, request_.model);
    if (!resolved.ok()) return;
    ++evaluated_;
    Draft draft;
    draft.plan.config = *std::move(resolved);
    draft.plan.capacity = planned_capacity(draft.plan.config, request_.hardware);
    draft.bound = state_bytes_once(draft.plan.config) +
                  saved_activation_bytes(request_.model, inventory_, draft.plan.config) +
                  bytes_outside_tensors(draft.plan.config, request_.hardware);
    if (draft.bound > draft.plan.capacity) {
      excluded_.push_back(std::move(draft));
      return;
    }
    add_cost(draft.plan);
    drafts_.push_back(std::move(draft));
  }

  // Microbatches and recompute do not change the states.
  int64_t state_bytes_once(const ResolvedConfig& config) {
    const auto key =
        std::tuple(config.config.parallel.zero, config.config.parallel.shard_size, config.compute, config.grads);
    const auto found = states_.find(key);
    if (found != states_.end()) return found->second;
    return states_[key] = state_bytes(inventory_, config);
  }

  void add_cost(Candidate& plan) {
    plan.cost = predict_cost(request_.model, inventory_, plan.config, request_.hardware);
    plan.tokens_per_s = static_cast<double>(plan.config.tokens_per_step) / plan.cost.seconds;
  }

  void replay(Draft& draft) {
    if (draft.replayed) return;
    draft.plan.ledger = predict_memory_shortened(request_.model, inventory_, draft.plan.config);
    add_outside_tensors(draft.plan.ledger, draft.plan.config, request_.hardware);
    draft.replayed = true;
  }

  // Which of two plans of equal speed asks less of its owner: no recompute, the lower ZeRO level, smaller microbatches,
  // which leave head-room, then the larger shard group.
  static auto simplicity(const Candidate& plan) {
    const RunConfig& config = plan.config.config;
    return std::tuple(config.recompute.kind, config.parallel.zero, config.batch.micro, -config.parallel.shard_size);
  }

  void collect_plans() {
    std::vector<Draft*> fitting;
    for (Draft& draft : drafts_) {
      if (!fitting.empty() && static_cast<int>(fitting.size()) >= request_.max_plans &&
          draft.plan.tokens_per_s < kEqualSpeed * fitting[0]->plan.tokens_per_s)
        break;
      replay(draft);
      if (draft.fits()) fitting.push_back(&draft);
    }
    if (fitting.empty()) return;
    const double equal = kEqualSpeed * fitting[0]->plan.tokens_per_s;
    std::stable_sort(fitting.begin(), fitting.end(), [equal](const Draft* a, const Draft* b) {
      const bool a_fast = a->plan.tokens_per_s >= equal, b_fast = b->plan.tokens_per_s >= equal;
      if (a_fast != b_fast) return a_fast;
      return a_fast && simplicity(a->plan) < simplicity(b->plan);
    });
    for (size_t i = 0; i < fitting.size() && i < static_cast<size_t>(request_.max_plans); ++i) {
      Candidate plan = fitting[i]->plan;
      const StepFlops flops = step_flops(request_.model, inventory_, plan.config);
      const double available = plan.cost.seconds * peak_flops_per_s(plan.config, request_.hardware);
      plan.mfu = flops.model_causal() / available;
      plan.hfu = flops.hardware_causal() / available;
      result_.plans.push_back(std::move(plan));
    }
  }

  // One line per ZeRO level and shard size: its fastest layout that fits and how far it stays behind, or what its
  // smallest layout lacks.
  void explain_rest() {
    std::map<std::pair<int, int>, std::vector<Draft*>> groups;
    for (std::vector<Draft>* drafts : {&drafts_, &excluded_})
      for (Draft& draft : *drafts) {
        const ParallelConfig& parallel = draft.plan.config.config.parallel;
        groups[{parallel.zero, parallel.shard_size}].push_back(&draft);
      }
    for (const auto& [key, group] : groups) {
      if (!result_.plans.empty()) {
        const ParallelConfig& best = result_.plans[0].config.config.parallel;
        if (key == std::pair(best.zero, best.shard_size)) continue;
      }
      result_.rejected.push_back(rejection(group));
    }
  }

  Rejection rejection(const std::vector<Draft*>& group) {
    Draft* smallest = group[0];
    for (Draft* draft : group) {
      if (draft->bound <= draft->plan.capacity) replay(*draft);
      if (draft->least_bytes() < smallest->least_bytes()) smallest = draft;
      if (!draft->replayed || !draft->fits()) continue;
      const double share = result_.plans.empty() ? 1 : draft->plan.tokens_per_s / result_.plans[0].tokens_per_s;
      const double waits = draft->plan.cost[TimePart::kExposedCommunication] / draft->plan.cost.seconds;
      const std::string speed = share >= kEqualSpeed ? "no faster than the best, and less simple"
                                                     : fmt::format("{:.0f} % slower than the best", 100 * (1 - share));
      return {draft->plan.config,
              fmt::format("fits ({}); {}; {:.0f} % of the step waits for communication",
                          format_bytes(draft->plan.ledger.peak_total), speed, 100 * waits),
              ""};
    }
    const ResolvedConfig& config = smallest->plan.config;
    const int64_t states = state_bytes(inventory_, config);
    const bool by_states = states > smallest->plan.capacity;
    return {config,
            fmt::format("does not fit: {} of states and {} in all at the least, of {}: {}", format_bytes(states),
                        format_bytes(smallest->least_bytes()), format_bytes(smallest->plan.capacity),
                        to_string(by_states ? Obstacle::kStates : Obstacle::kActivations)),
            by_states ? states_fix(config) : "a shorter batch.sequence, or more memory"};
  }

  std::string states_fix(const ResolvedConfig& config) const {
    const ParallelConfig& parallel = config.config.parallel;
    if (parallel.dp == 1) return "more ranks: with one there is nothing to shard over";
    if (parallel.zero > 0 && parallel.shard_size < parallel.dp)
      return fmt::format("parallel.shard_size = {}", parallel.dp);
    if (parallel.zero < 3) return fmt::format("parallel.zero = {}", parallel.zero + 1);
    return "more ranks";
  }

  Wall wall() const {
    const Candidate& best = result_.plans[0];
    for (const Draft& draft : drafts_)
      if (draft.replayed && !draft.fits() && draft.plan.tokens_per_s > kWorthMemory * best.tokens_per_s)
        return Wall::kMemory;
    const double communication = best.cost[TimePart::kExposedCommunication] + best.cost[TimePart::kOverlapSlowdown];
    return communication > kCommunicationBound * best.cost.seconds ? Wall::kCommunication : Wall::kCompute;
  }

  void describe_obstacle() {
    const ResolvedConfig config = smallest_layout(ranks_, request_.base.batch.sequence);
    Ledger ledger = predict_memory_shortened(request_.model, inventory_, config);
    add_outside_tensors(ledger, config, request_.hardware);
    const int64_t capacity = planned_capacity(config, request_.hardware);
    result_.smallest_peak = ledger.peak_total;
    if (one_layer_bytes(request_.model, inventory_, config) > capacity)
      result_.obstacle = Obstacle::kOneLayer;
    else
      result_.obstacle = state_bytes(inventory_, config) > capacity ? Obstacle::kStates : Obstacle::kActivations;
    add_fixes(capacity);
  }

  // The layout that needs least memory: everything sharded over all ranks, one sequence at a time, every layer
  // recomputed.
  ResolvedConfig smallest_layout(int ranks, int64_t sequence) const {
    RunConfig config = request_.base;
    config.parallel.dp = ranks;
    config.parallel.zero = ranks > 1 ? 3 : 0;
    config.parallel.shard_size = 0;
    config.batch.micro = 1;
    config.batch.global = ranks;
    config.batch.sequence = sequence;
    config.recompute = {.kind = RecomputeKind::kFull, .every = 1, .tensors = {}};
    return resolve(config, request_.model).value();
  }

  bool smallest_fits(const ResolvedConfig& config) const {
    Ledger ledger = predict_memory_shortened(request_.model, inventory_, config);
    add_outside_tensors(ledger, config, request_.hardware);
    return ledger.peak_total <= planned_capacity(config, request_.hardware);
  }

  std::string speed_text(const ResolvedConfig& config) const {
    const StepCost cost = predict_cost(request_.model, inventory_, config, request_.hardware);
    std::string text = fmt::format("{:.0f} tokens/s", static_cast<double>(config.tokens_per_step) / cost.seconds);
    if (const Figure& price = request_.hardware.device.price_per_hour; price.known())
      text += fmt::format(", {:.2f} US dollars an hour", price.value * config.degrees.world());
    return text;
  }

  void add_fixes(int64_t capacity) {
    const int64_t sequence = request_.base.batch.sequence;
    if (request_.hardware.device.cores == 0) {
      constexpr int kMostRanks = 1 << 14;
      const int step = static_cast<int>(std::max<int64_t>(1, request_.hardware.devices_per_node));
      // Twice as many until it fits, then whole nodes fewer.
      int many = ranks_;
      while (many <= kMostRanks && !smallest_fits(smallest_layout(many, sequence))) many *= 2;
      if (many <= kMostRanks) {
        int few = many;
        while (few - step > ranks_ && smallest_fits(smallest_layout(few - step, sequence))) few -= step;
        const ResolvedConfig config = smallest_layout(few, sequence);
        result_.fixes.push_back(
            {fmt::format("{} devices instead of {} ({})", few, ranks_, layout_text(config)), speed_text(config)});
      }
    }
    for (int64_t shorter = sequence / 2; shorter >= 128; shorter /= 2) {
      const ResolvedConfig config = smallest_layout(ranks_, shorter);
      if (!smallest_fits(config)) continue;
      result_.fixes.push_back(
          {fmt::format("batch.sequence = {} instead of {} ({})", shorter, sequence, layout_text(config)),
           speed_text(config)});
      break;
    }
    result_.fixes.push_back(
        {fmt::format("{} a rank instead of {}", format_bytes(result_.smallest_peak), format_bytes(capacity)),
         "with the layout that needs least: " + layout_text(smallest_layout(ranks_, sequence))});
  }

  const SearchRequest& request_;
  int ranks_;
  Inventory inventory_;
  int64_t tokens_target_ = 0;
  std::vector<Draft> drafts_, excluded_;
  std::map<std::tuple<int, int, DType, DType>, int64_t> states_;
  int64_t evaluated_ = 0;
  SearchResult result_;
};

}  // namespace

std::string_view to_string(Obstacle obstacle) {
  static constexpr std::string_view kNames[] = {"states", "activations", "one layer"};
  return kNames[static_cast<size_t>(obstacle)];
}

std::string_view to_string(Wall wall) {
  static constexpr std::string_view kNames[] = {"memory", "compute", "communication"};
  return kNames[static_cast<size_t>(wall)];
}

std::string layout_text(const ResolvedConfig& config) {
  const ParallelConfig& parallel = config.config.parallel;
  std::string text = fmt::format("dp={} zero={}", parallel.dp, parallel.zero);
  if (parallel.tp > 1) text = fmt::format("tp={}{} {}", parallel.tp, parallel.sp ? " sp" : "", text);
  if (parallel.cp > 1) text = fmt::format("cp={} {} {}", parallel.cp, to_string(parallel.cp_kind), text);
  if (parallel.pp > 1) text = fmt::format("pp={} {} {}", parallel.pp, to_string(parallel.schedule), text);
  if (parallel.zero > 0 && parallel.shard_size < parallel.dp)
    text += fmt::format(" shard_size={}", parallel.shard_size);
  text += fmt::format(" micro={} accumulation={}", config.config.batch.micro, config.num_microbatches);
  if (config.config.recompute.kind == RecomputeKind::kFull)
    text += fmt::format(" recompute=full/{}", config.config.recompute.every);
  return text + " " + std::string(to_string(config.config.precision.compute));
}

Result<SearchResult> search_layouts(const SearchRequest& request) {
  if (const std::vector<Error> errors = search_scope(request.model, request.base); !errors.empty())
    return errors.front();
  RunConfig probe = request.base;
  probe.parallel.shard_size = 0;
  std::optional<SearchResult> last;
  std::optional<Error> refused;
  int64_t evaluated = 0;
  const bool fewest = request.goal == SearchGoal::kFewestRanks;
  for (size_t i = fewest ? 0 : request.rank_counts.size() - 1; i < request.rank_counts.size(); ++i) {
    probe.parallel.dp = request.rank_counts[i];
    probe.batch.micro = 1;
    if (const std::vector<Error> errors = validate_layout(request.model, probe); !errors.empty()) {
      refused = errors.front();
      continue;
    }
    last = LayoutSearch(request, request.rank_counts[i]).run();
    evaluated = last->evaluated += evaluated;
    if (!last->plans.empty()) break;
  }
  if (!last) return *refused;
  return *std::move(last);
}

}  // namespace fivefold
