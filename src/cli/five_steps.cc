#include "cli/five_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/integer.h"
#include "base/text.h"
#include "planner/scope.h"
#include "spec/model_count.h"

namespace fivefold {
namespace {

std::string recompute_words(const RecomputeConfig& recompute) {
  switch (recompute.kind) {
    case RecomputeKind::kNone:
      return "nothing recomputed";
    case RecomputeKind::kSelective:
      return join(recompute.tensors, " and ") + " recomputed";
    case RecomputeKind::kFull:
      return recompute.every == 1 ? "every layer recomputed"
                                  : fmt::format("segments of {} layers recomputed", recompute.every);
  }
  FIVEFOLD_CHECK(false);
}

class Decision {
 public:
  Decision(const SearchRequest& request, const SearchResult& result)
      : request_(request),
        result_(result),
        inventory_(build_inventory(request.model)),
        ranks_(result.plans.empty() ? request.rank_counts.back() : result.plans[0].config.degrees.world()) {}

  std::vector<DecisionStep> steps() const { return {memory(), sharding(), splits(), batch(), precision()}; }

 private:
  const Candidate* best() const { return result_.plans.empty() ? nullptr : &result_.plans[0]; }
  const ModelSpec& model() const { return request_.model; }

  // One microbatch of one sequence, nothing recomputed, on `ranks` ranks.
  ResolvedConfig layout(int ranks, int zero) const {
    RunConfig config = request_.base;
    if (best() != nullptr) config.precision.compute = best()->config.config.precision.compute;
    config.parallel = {.dp = ranks, .zero = zero, .threads = config.parallel.threads};
    config.batch.micro = 1;
    config.batch.global = ranks * (best() != nullptr ? best()->config.num_microbatches : 1);
    config.recompute = {};
    return resolve(config, model()).value();
  }

  DecisionStep memory() const {
    const ResolvedConfig alone = layout(1, 0);
    const int64_t states = state_bytes(inventory_, alone),
                  capacity = planned_capacity(layout(ranks_, 0), request_.hardware);
    const int64_t activations = saved_activation_bytes(model(), inventory_, alone);
    const auto parameters = static_cast<double>(inventory_.num_parameters());
    return {"Memory of one copy",
            {fmt::format("{} parameters x {:.2f} B = {} of states", format_count(inventory_.num_parameters()),
                         static_cast<double>(states) / parameters, format_bytes(states)),
             fmt::format("activations of one sequence of {} tokens: {}, nothing recomputed",
                         alone.config.batch.sequence, format_bytes(activations)),
             fmt::format("a rank may fill {}", format_bytes(capacity))},
            {{"parameters", parameters},
             {"state_bytes", static_cast<double>(states)},
             {"activation_bytes", static_cast<double>(activations)},
             {"capacity", static_cast<double>(capacity)}}};
  }

  DecisionStep sharding() const {
    DecisionStep step{"Must the states be sharded, and at which level", {}, {}};
    const int64_t capacity = planned_capacity(layout(ranks_, 0), request_.hardware);
    int lowest = -1;
    for (int zero = 0; zero <= 3; ++zero) {
      const int64_t bytes = state_bytes(inventory_, layout(ranks_, zero));
      if (bytes <= capacity && lowest < 0) lowest = zero;
      step.lines.push_back(fmt::format("ZeRO-{} over {} ranks: {} of states a rank{}", zero, ranks_,
                                       format_bytes(bytes), bytes > capacity ? ", more than there is" : ""));
      step.numbers.emplace_back(fmt::format("zero{}_state_bytes", zero), static_cast<double>(bytes));
    }
    if (ranks_ == 1) step.lines.emplace_back("with one data-parallel rank there is nothing to shard over");
    if (lowest < 0)
      step.lines.emplace_back("not even ZeRO-3 brings the states under the capacity");
    else
      step.lines.push_back(fmt::format("the states alone need level {} or higher", lowest));
    if (best() == nullptr) return step;
    const ParallelConfig& chosen = best()->config.config.parallel;
    step.lines.push_back(
        chosen.zero == 0
            ? std::string("chosen: level 0")
            : fmt::format("chosen: level {} over {} ranks{}", chosen.zero, chosen.shard_size,
                          chosen.shard_size < chosen.dp * chosen.cp
                              ? fmt::format(", {} replicas", div_exact(chosen.dp * chosen.cp, chosen.shard_size))
                              : ""));
    step.numbers.emplace_back("zero", chosen.zero);
    return step;
  }

  // What a layer and a stage need, what a split would leave of them, and how the best layout with it does.
  DecisionStep splits() const {
    DecisionStep step{"Is tensor, context or pipeline parallelism needed, and where", {}, {}};
    const ResolvedConfig config = layout(ranks_, ranks_ > 1 ? 3 : 0);
    const int64_t layer = one_layer_bytes(model(), inventory_, config),
                  capacity = planned_capacity(config, request_.hardware);
    step.numbers = {{"one_layer_bytes", static_cast<double>(layer)}};
    step.lines.push_back(
        fmt::format("one layer with its gradient and the activations of one sequence: {}", format_bytes(layer)));
    if (const std::optional<ResolvedConfig> split = tensor_group(config)) {
      const int64_t part = one_layer_bytes(model(), inventory_, *split);
      step.lines.push_back(fmt::format("over tp = {} ranks of a node: {}, and its states {} without ZeRO",
                                       split->degrees.tp, format_bytes(part),
                                       format_bytes(div_ceil(states_alone(), split->degrees.tp))));
      step.numbers.emplace_back("tp_layer_bytes", static_cast<double>(part));
    }
    add_pipeline(step);
    step.numbers.emplace_back("needed", add_verdict(step, layer > capacity) ? 1.0 : 0.0);
    return step;
  }

  int64_t states_alone() const { return state_bytes(inventory_, layout(1, 0)); }

  // The widest tensor group within a node that the model allows; nothing: none.
  std::optional<ResolvedConfig> tensor_group(const ResolvedConfig& plain) const {
    for (int tp = ranks_of_node(request_.hardware, ranks_); tp > 1; --tp) {
      RunConfig config = plain.config;
      config.parallel.tp = tp;
      config.parallel.dp = ranks_ / tp;
      config.parallel.shard_size = 0;
      config.batch.global = config.parallel.dp;
      if (ranks_ % tp != 0 || !planner_scope(model(), config).empty()) continue;
      const Result<ResolvedConfig> resolved = resolve(config, model());
      if (resolved.ok()) return *resolved;
    }
    return std::nullopt;
  }

  void add_pipeline(DecisionStep& step) const {
    const int stages = static_cast<int>(std::min<size_t>(static_cast<size_t>(ranks_), model().layers.size()));
    if (stages == 1) return;
    const int64_t states = div_ceil(states_alone(), stages);
    const int64_t rows = best() != nullptr ? best()->config.config.batch.global : ranks_;
    const double bubble = static_cast<double>(stages - 1) / static_cast<double>(rows + stages - 1);
    step.lines.push_back(fmt::format(
        "over pp = {} stages, the most there can be: {} of states without ZeRO; a layer stays whole; bubble of 1F1B "
        "with {} microbatches {:.0f} %",
        stages, format_bytes(states), rows, 100 * bubble));
    step.numbers.emplace_back("pp_state_bytes", static_cast<double>(states));
  }

  // Whether a plan has to split the model.
  bool add_verdict(DecisionStep& step, bool layer_too_large) const {
    const auto plain = std::find_if(result_.rejected.begin(), result_.rejected.end(),
                                    [](const Rejection& rejection) { return rejection.split == SplitKind::kNone; });
    if (best() == nullptr) {
      step.lines.emplace_back(layer_too_large
                                  ? "needed: one layer does not fit a rank whatever is sharded, and no split that the "
                                    "configuration leaves is enough"
                                  : "no layout that the configuration leaves fits, with a split or without");
      return layer_too_large;
    }
    if (plain == result_.rejected.end() && !splits_model()) {
      step.lines.push_back(layer_too_large
                               ? "not needed: microbatches of the plan fit"
                               : "not needed: one layer fits, and sharding removes the rest of the weights");
      add_best_split(step);
      return false;
    }
    const bool fits = plain != result_.rejected.end() && plain->fits;
    const std::string chosen = layout_text(best()->config);
    if (fits)
      step.lines.push_back(fmt::format("not needed, but faster: {}; without a split: {}", chosen, plain->reason));
    else if (plain != result_.rejected.end())
      step.lines.push_back(fmt::format("needed: {}; without a split it {}", chosen, plain->reason));
    else
      step.lines.push_back(fmt::format("as it is configured: {}", chosen));
    return !fits;
  }

  bool splits_model() const {
    const ParallelConfig& parallel = best()->config.config.parallel;
    return parallel.tp * parallel.cp * parallel.pp > 1;
  }

  // What the splits would give instead.
  void add_best_split(DecisionStep& step) const {
    for (const Rejection& rejection : result_.rejected)
      if (rejection.split == SplitKind::kTp || rejection.split == SplitKind::kPp || rejection.split == SplitKind::kCp)
        step.lines.push_back(
            fmt::format("{}: {}: {}", rejection.kind, layout_text(*rejection.config), rejection.reason));
  }

  DecisionStep batch() const {
    DecisionStep step{"Batch, microbatch, accumulation", {}, {}};
    if (best() == nullptr) {
      step.lines.emplace_back("open until something fits");
      return step;
    }
    const ResolvedConfig& config = best()->config;
    const BatchConfig& batch = config.config.batch;
    step.lines.push_back(fmt::format("{} sequences = {} {} x {} a microbatch x {} accumulated; {} tokens a step{}",
                                     batch.global, config.config.parallel.dp, splits_model() ? "replicas" : "ranks",
                                     batch.micro, config.num_microbatches, format_count(config.tokens_per_step),
                                     request_.base.batch.global == 0 ? " (chosen; set batch.global)" : ""));
    const OptimizerConfig& optimizer = config.config.optimizer;
    const bool adam = optimizer.kind == OptimizerKind::kAdamW;
    step.lines.push_back(
        fmt::format("a rate tuned at another batch scales by {} of the ratio: twice the batch, lr x {}; only up to the "
                    "critical batch",
                    adam ? "the square root" : "the whole", adam ? "1.41" : "2"));
    if (adam) {
      const double warmup = 2 / (1 - optimizer.betas[1]);
      step.lines.push_back(fmt::format("warm-up: at least 2 / (1 - beta2) = {:.0f} steps, {} tokens here", warmup,
                                       format_count(std::llround(warmup) * config.tokens_per_step)));
      step.numbers.emplace_back("warmup_steps", warmup);
    }
    step.numbers.emplace_back("global", static_cast<double>(batch.global));
    step.numbers.emplace_back("micro", static_cast<double>(batch.micro));
    step.numbers.emplace_back("accumulation", static_cast<double>(config.num_microbatches));
    step.numbers.emplace_back("tokens_per_step", static_cast<double>(config.tokens_per_step));
    return step;
  }

  DecisionStep precision() const {
    DecisionStep step{"Precision and recompute", {}, {}};
    if (best() == nullptr) {
      step.lines.emplace_back("every layer recomputed is assumed in what does not fit");
      return step;
    }
    const ResolvedConfig& config = best()->config;
    step.lines.push_back(fmt::format("{} operands, {} gradients, fp32 {}", to_string(config.config.precision.compute),
                                     to_string(config.grads), config.master ? "master copy and moments" : "moments"));
    const RecomputeKind kind = config.config.recompute.kind;
    const auto priced = [&](const RecomputeConfig& recompute, const std::string& prefix) {
      ResolvedConfig other = config;
      other.config.recompute = recompute;
      const double seconds = predict_cost(model(), inventory_, other, request_.hardware).seconds;
      const Ledger ledger = fullest_rank(model(), inventory_, other, request_.hardware).ledger;
      step.numbers.emplace_back(prefix + "peak", static_cast<double>(ledger.peak_total));
      step.numbers.emplace_back(prefix + "step_time", seconds);
      return fmt::format("{}: peak {}, step {}{}", recompute_words(recompute), format_bytes(ledger.peak_total),
                         format_seconds(seconds), ledger.peak_total > best()->capacity ? ", does not fit" : "");
    };
    std::vector<std::string> prices{fmt::format("{}: peak {}, step {}", recompute_words(config.config.recompute),
                                                format_bytes(best()->ledger.peak_total),
                                                format_seconds(best()->cost.seconds))};
    step.numbers = {{"peak", static_cast<double>(best()->ledger.peak_total)}, {"step_time", best()->cost.seconds}};
    prices.push_back(kind == RecomputeKind::kNone
                         ? priced({.kind = RecomputeKind::kFull, .every = 1, .tensors = {}}, "other_")
                         : priced({}, "other_"));
    RecomputeConfig products{.kind = RecomputeKind::kSelective, .every = 1, .tensors = {}};
    for (const Droppable name : droppable_tensors(model()))
      if (name != Droppable::kAttentionOut) products.tensors.emplace_back(to_string(name));
    step.lines.push_back(join(prices, "; "));
    if (kind != RecomputeKind::kSelective && !products.tensors.empty())
      step.lines.push_back(priced(products, "selective_"));
    return step;
  }

  const SearchRequest& request_;
  const SearchResult& result_;
  Inventory inventory_;
  int ranks_;
};

}  // namespace

std::vector<DecisionStep> five_steps(const SearchRequest& request, const SearchResult& result) {
  return Decision(request, result).steps();
}

}  // namespace fivefold
