#include "planner/remedies.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/integer.h"
#include "planner/capacity.h"
#include "planner/cost.h"
#include "planner/run_settings.h"
#include "planner/scope.h"
#include "spec/dropped_tensors.h"
#include "spec/inventory.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

constexpr std::string_view kRemedyNames[kNumRemedyKinds] = {
    "smaller microbatch", "compute type", "optimizer states", "no master copy", "recompute tensors",
    "recompute layers",   "adapter rank", "sequence",         "LoRA",           "QLoRA",
    "sharding",           "more ranks"};

constexpr int64_t kShortestSequence = 128;
constexpr int64_t kLowestRank = 4;
constexpr int kMostTimesRanks = 64;

// Settings of one kind to try on a configuration, mildest first.
class Candidates {
 public:
  Candidates(const ModelSpec& model, const RunConfig& config)
      : model_(model),
        config_(config),
        sequences_(resolve(config, with_method(model, config.method)).value().config.batch.global) {}

  std::vector<RunConfig> of(RemedyKind kind) {
    changed_.clear();
    add(kind);
    return std::move(changed_);
  }

 private:
  template <typename Change>
  void with(const Change& change) {
    RunConfig config = config_;
    change(config);
    if (config == config_) return;
    // The global batch stays what it is, also where it followed from what has changed.
    const auto followed = [](const RunConfig& c) { return c.batch.micro * c.parallel.dp; };
    if (followed(config) != followed(config_)) config.batch.global = sequences_;
    // A gradient's type that was right for one microbatch a step is not for several.
    if (!validate_layout(with_method(model_, config.method), config).empty())
      config.precision.grads = config.precision.reduce = std::nullopt;
    changed_.push_back(std::move(config));
  }

  void add(RemedyKind kind) {
    switch (kind) {
      case RemedyKind::kMicrobatch:
        return add_microbatches();
      case RemedyKind::kComputeType:
        if (config_.precision.compute == ComputeKind::kFp32)
          with([](RunConfig& c) {
            c.precision.compute = ComputeKind::kBf16;
            c.precision.params = c.precision.grads = c.precision.reduce = std::nullopt;
          });
        return;
      case RemedyKind::kOptimizerStates:
        for (const OptimizerStateKind states : {OptimizerStateKind::kBf16, OptimizerStateKind::k8Bit})
          if (states > config_.precision.optimizer_state)
            with([&](RunConfig& c) { c.precision.optimizer_state = states; });
        return;
      case RemedyKind::kMaster:
        return with([](RunConfig& c) { c.precision.master = MasterKind::kNone; });
      case RemedyKind::kRecomputeTensors:
        return add_recomputed_tensors();
      case RemedyKind::kRecomputeLayers:
        return add_recomputed_layers();
      case RemedyKind::kAdapterRank:
        if (config_.method.kind == MethodKind::kFull) return;
        for (int64_t rank = config_.method.rank / 2; rank >= kLowestRank; rank /= 2)
          with([&](RunConfig& c) { c.method.rank = rank; });
        return;
      case RemedyKind::kSequence:
        for (int64_t tokens = config_.batch.sequence / 2; tokens >= kShortestSequence; tokens /= 2)
          with([&](RunConfig& c) { c.batch.sequence = tokens; });
        return;
      case RemedyKind::kLora:
        if (config_.method.kind == MethodKind::kFull) add_method(MethodKind::kLora);
        return;
      case RemedyKind::kQlora:
        if (config_.method.kind != MethodKind::kQlora) add_method(MethodKind::kQlora);
        return;
      case RemedyKind::kSharding:
        return add_sharding();
      case RemedyKind::kMoreRanks:
        return add_ranks();
    }
  }

  void add_microbatches() {
    for (int64_t micro = config_.batch.micro - 1; micro >= 1; --micro)
      if (config_.batch.micro % micro == 0) with([&](RunConfig& c) { c.batch.micro = micro; });
  }

  void add_recomputed_tensors() {
    if (config_.recompute.kind != RecomputeKind::kNone) return;
    // The widest first: they save most for the products that are repeated.
    const std::vector<Droppable> names = droppable_tensors(model_);
    std::vector<std::string> tensors;
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      tensors.emplace_back(to_string(*name));
      with([&](RunConfig& c) { c.recompute = {.kind = RecomputeKind::kSelective, .every = 1, .tensors = tensors}; });
    }
  }

  void add_recomputed_layers() {
    const auto layers = static_cast<int64_t>(model_.layers.size());
    const auto root = std::llround(std::sqrt(static_cast<double>(layers)));
    for (const int64_t every : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{8}, int64_t{root}})
      if (every <= layers)
        with([&](RunConfig& c) { c.recompute = {.kind = RecomputeKind::kFull, .every = every, .tensors = {}}; });
  }

  // Adapters have few states: what was done to those of all weights is taken back.
  void add_method(MethodKind kind) {
    with([&](RunConfig& c) {
      c.method.kind = kind;
      c.precision.master = MasterKind::kFp32;
    });
  }

  void add_sharding() {
    if (config_.parallel.dp * config_.parallel.cp == 1) return;
    for (int zero = config_.parallel.zero + 1; zero <= 3; ++zero) with([&](RunConfig& c) { c.parallel.zero = zero; });
    with([](RunConfig& c) {
      c.parallel.zero = 3;
      c.parallel.shard_size = 0;
    });
  }

  void add_ranks() {
    for (int times = 2; times <= kMostTimesRanks; times *= 2) {
      const int dp = config_.parallel.dp * times;
      if (sequences_ % dp != 0) return;
      for (const int zero : {1, 2, 3}) {
        if (zero < config_.parallel.zero) continue;
        with([&](RunConfig& c) {
          c.parallel.dp = dp;
          c.parallel.zero = zero;
          c.parallel.shard_size = 0;
          c.batch.micro = std::gcd(c.batch.micro, div_exact(sequences_, int64_t{dp}));
        });
      }
    }
  }

  const ModelSpec& model_;
  const RunConfig& config_;
  int64_t sequences_;  // a step
  std::vector<RunConfig> changed_;
};

class RemedySearch {
 public:
  RemedySearch(const ModelSpec& model, const RunConfig& config, const HardwareSpec& hardware,
               const RemedyOptions& options)
      : model_(model), config_(config), hardware_(hardware), options_(options) {}

  RemedyList list() const {
    RemedyList list{.before = need(config_), .each = {}, .together = {}};
    bool enough = list.before.fits();
    for (const RemedyKind kind : all_kinds()) {
      const std::optional<RunConfig> changed = best(kind, config_);
      if (!changed) continue;
      list.each.push_back(remedy(kind, *changed));
      enough = enough || list.each.back().need.fits();
    }
    if (!enough) list.together = together();
    return list;
  }

 private:
  static std::vector<RemedyKind> all_kinds() {
    std::vector<RemedyKind> kinds;
    for (int i = 0; i < kNumRemedyKinds; ++i) kinds.push_back(static_cast<RemedyKind>(i));
    return kinds;
  }

  // What is derived from the model depends on the method.
  struct Derived {
    ModelSpec model;
    Inventory inventory;
    ResolvedConfig config;
  };
  Derived derived(const RunConfig& config) const {
    ModelSpec model = with_method(model_, config.method);
    Inventory inventory = build_inventory(model);
    ResolvedConfig resolved = resolve(config, model).value();
    return {std::move(model), std::move(inventory), std::move(resolved)};
  }
  int64_t peak(const Derived& run) const {
    return options_.beyond_plan + fullest_rank(run.model, run.inventory, run.config, hardware_).ledger.peak_total;
  }
  int64_t peak(const RunConfig& config) const { return peak(derived(config)); }
  int64_t capacity(const RunConfig& config) const { return planned_capacity(derived(config).config, hardware_); }
  Need need(const RunConfig& config) const {
    const Derived run = derived(config);
    const double seconds = predict_cost(run.model, run.inventory, run.config, hardware_).seconds;
    return {.peak = peak(run),
            .capacity = planned_capacity(run.config, hardware_),
            .tokens_per_s = static_cast<double>(run.config.tokens_per_step) / seconds};
  }
  Remedy remedy(RemedyKind kind, const RunConfig& config) const {
    RunSettings run = run_settings(model_, options_.written ? *options_.written : config_, config);
    return {.kind = kind, .config = std::move(run.config), .settings = std::move(run.settings), .need = need(config)};
  }

  // Of the settings of a kind that are valid and save memory the mildest that fits, else the one that saves most.
  std::optional<RunConfig> best(RemedyKind kind, const RunConfig& config) const {
    std::optional<RunConfig> best;
    int64_t least = peak(config);
    for (RunConfig& changed : Candidates(model_, config).of(kind)) {
      if (adds_refusal(model_, config_, changed)) continue;
      const int64_t bytes = peak(changed);
      if (bytes >= least) continue;
      least = bytes;
      best = std::move(changed);
      if (least <= capacity(*best)) break;
    }
    return best;
  }

  struct Steps {
    std::vector<RemedyKind> kinds;  // that were taken
    RunConfig config;
    bool fits = false;
  };
  // One kind after the other until it fits.
  Steps take(const std::vector<RemedyKind>& kinds) const {
    Steps steps{.kinds = {}, .config = config_, .fits = false};
    for (const RemedyKind kind : kinds) {
      std::optional<RunConfig> changed = best(kind, steps.config);
      if (!changed) continue;
      steps.config = *std::move(changed);
      steps.kinds.push_back(kind);
      steps.fits = peak(steps.config) <= capacity(steps.config);
      if (steps.fits) break;
    }
    return steps;
  }

  std::optional<Remedy> together() const {
    Steps steps = take(all_kinds());
    if (!steps.fits) return std::nullopt;
    // The last is needed. Of the others the later ones ask more of the run, and are left out first.
    const std::vector<RemedyKind> taken = steps.kinds;
    for (size_t i = taken.size() - 1; i-- > 0;) {
      std::vector<RemedyKind> fewer;
      for (const RemedyKind kind : steps.kinds)
        if (kind != taken[i]) fewer.push_back(kind);
      Steps without = take(fewer);
      if (without.fits) steps = std::move(without);
    }
    return remedy(steps.kinds.back(), steps.config);
  }

  const ModelSpec& model_;
  const RunConfig& config_;
  const HardwareSpec& hardware_;
  const RemedyOptions& options_;
};

}  // namespace

std::string_view to_string(RemedyKind kind) { return kRemedyNames[static_cast<size_t>(kind)]; }

RemedyList find_remedies(const ModelSpec& model, const RunConfig& config, const HardwareSpec& hardware,
                         const RemedyOptions& options) {
  return RemedySearch(model, config, hardware, options).list();
}

}  // namespace fivefold
