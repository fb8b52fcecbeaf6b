#include "planner/verdicts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "planner/small_layout.h"
#include "spec/validate.h"

namespace fivefold {
namespace {

constexpr double kWorthMemory = 1.05;         // memory is the wall when this much faster layouts do not fit
constexpr double kCommunicationBound = 0.25;  // share of the step

std::string price(const SearchRequest& request, const Inventory& inventory, const ResolvedConfig& config) {
  const StepCost cost = predict_cost(request.model, inventory, config, request.hardware);
  std::string text = fmt::format("{:.0f} tokens/s", static_cast<double>(config.tokens_per_step) / cost.seconds);
  if (const Figure& hourly = request.hardware.device.price_per_hour; hourly.known())
    text += fmt::format(", {:.2f} US dollars an hour", hourly.value * config.degrees.world());
  return text;
}

void add_more_ranks(const SearchRequest& request, const Inventory& inventory, int ranks, SearchResult& result) {
  if (request.hardware.device.cores > 0 || request.fixed.dp) return;
  constexpr int kMostRanks = 1 << 14;
  const int step = static_cast<int>(std::max<int64_t>(1, request.hardware.devices_per_node));
  // Twice as many until it fits, then whole nodes fewer.
  int many = 2 * ranks;
  std::optional<ResolvedConfig> layout;
  while (many <= kMostRanks && !(layout = small_layout(request, inventory, many))) many *= 2;
  if (!layout) return;
  for (int few = many - step; few > ranks; few -= step) {
    std::optional<ResolvedConfig> fewer = small_layout(request, inventory, few);
    if (!fewer) break;
    layout = std::move(fewer);
    many = few;
  }
  result.fixes.push_back({fmt::format("{} devices instead of {} ({})", many, ranks, layout_text(*layout)),
                          price(request, inventory, *layout)});
}

void add_shorter_sequence(const SearchRequest& request, const Inventory& inventory, int ranks, SearchResult& result) {
  const int64_t sequence = request.base.batch.sequence;
  SearchRequest shorter = request;
  for (shorter.base.batch.sequence = sequence / 2; shorter.base.batch.sequence >= 128;
       shorter.base.batch.sequence /= 2) {
    const std::optional<ResolvedConfig> config = small_layout(shorter, inventory, ranks);
    if (!config) continue;
    result.fixes.push_back({fmt::format("batch.sequence = {} instead of {} ({})", shorter.base.batch.sequence, sequence,
                                        layout_text(*config)),
                            price(request, inventory, *config)});
    return;
  }
}

void add_free_keys(const SearchRequest& request, const Inventory& inventory, int ranks, SearchResult& result) {
  const std::vector<std::string> keys = fixed_text(request.fixed, request.base);
  if (keys.empty()) return;
  SearchRequest free = request;
  free.fixed = {};
  if (const std::optional<ResolvedConfig> config = small_layout(free, inventory, ranks))
    result.fixes.push_back({fmt::format("{} left to the search ({})", join(keys, ", "), layout_text(*config)),
                            price(request, inventory, *config)});
}

}  // namespace

std::optional<Error> plain_error(const SearchRequest& request, int ranks) {
  RunConfig plain = request.base;
  plain.parallel.dp = ranks;
  for (int* degree : {&plain.parallel.tp, &plain.parallel.cp, &plain.parallel.pp, &plain.parallel.vpp}) *degree = 1;
  plain.parallel.shard_size = 0;
  plain.parallel.schedule = ScheduleKind::k1F1B;
  plain.parallel.schedule_file.clear();
  plain.parallel.stages = {};
  plain.parallel.reduce = ReduceWhen::kMicrobatch;
  if (!request.fixed.micro) plain.batch.micro = 1;
  const std::vector<Error> errors = validate_layout(request.model, plain);
  return errors.empty() ? std::nullopt : std::optional(errors.front());
}

SplitKind split_kind(const Layout& layout) {
  const bool tp = layout.tp > 1, pp = layout.pp > 1;
  if (layout.cp > 1) return tp || pp ? SplitKind::kCpMore : SplitKind::kCp;
  if (tp && pp) return SplitKind::kTpPp;
  return tp ? SplitKind::kTp : pp ? SplitKind::kPp : SplitKind::kNone;
}

std::string_view to_string(SplitKind kind) {
  static constexpr std::string_view kNames[] = {"no split", "tp only",   "pp only",
                                                "cp only",  "tp and pp", "cp with tp or pp"};
  return kNames[static_cast<size_t>(kind)];
}

std::string Verdicts::fits_reason(const ResolvedConfig& config, double least_seconds) const {
  const Candidate& best = plans_[0];
  const StepCost cost = predict_cost(request_.model, inventory_, config, request_.hardware);
  const RankLedger fullest = fullest_rank(request_.model, inventory_, config, request_.hardware);
  const double share = static_cast<double>(config.tokens_per_step) / cost.seconds / best.tokens_per_s;
  std::string text = fmt::format("fits ({}); ", format_bytes(fullest.ledger.peak_total));
  if (share > 1)
    text += fmt::format("{:.1f} % faster than the best, and less simple", 100 * (share - 1));
  else if (share < kEqualSpeed)
    text += fmt::format("{:.0f} % slower than the best", 100 * (1 - share));
  else
    text += fmt::format("{:.1f} % slower than the best", 100 * (1 - share));
  text += fmt::format("; {:.0f} % of the step waits for communication",
                      100 * cost[TimePart::kExposedCommunication] / cost.seconds);
  if (config.degrees.pp > 1) text += fmt::format(", {:.0f} % is bubble", 100 * cost[TimePart::kBubble] / cost.seconds);
  if (least_seconds < cost.seconds)
    text += fmt::format("; none of the kind is less than {:.0f} % slower",
                        std::floor(100 * (1 - best.cost.seconds / least_seconds)));
  return text;
}

std::string Verdicts::states_fix(const ResolvedConfig& config) const {
  const ParallelConfig& parallel = config.config.parallel;
  const int members = parallel.dp * parallel.cp;
  if (config.degrees.world() == 1) return "more ranks: with one there is nothing to shard over";
  if (parallel.zero > 0 && parallel.shard_size < members) return fmt::format("parallel.shard_size = {}", members);
  if (parallel.zero < 3 && members > 1) return fmt::format("parallel.zero = {}", parallel.zero + 1);
  return "more ranks";
}

void Verdicts::add_rejection(Rejection rejection, const LayoutExplorer::Group& group,
                             const std::optional<LayoutExplorer::Fastest>& fastest,
                             std::vector<Rejection>& rejections) const {
  if (fastest && !plans_.empty()) {
    rejection.fits = true;
    rejection.config = space_.resolved(fastest->timed.layout);
    rejection.reason = fits_reason(*rejection.config, fastest->least);
    rejections.push_back(std::move(rejection));
    return;
  }
  const std::optional<Layout> smallest = explorer_.smallest(group);
  if (!smallest) {
    if (rejection.split != SplitKind::kNone) return;
    if (const std::optional<Error> error = plain_error(request_, space_.ranks())) {
      rejection.reason = fmt::format("is not legal: {}: {}", error->where, error->problem);
      rejection.fix = error->hint;
      rejections.push_back(std::move(rejection));
    }
    return;
  }
  const ResolvedConfig config = *space_.resolved(*smallest);
  const RankLedger fullest = fullest_rank(request_.model, inventory_, config, request_.hardware);
  const int64_t data = fullest.ledger.persistent[Account::kData] + fullest.ledger.persistent[Account::kOther];
  const int64_t states = fullest.ledger.persistent.total() - data;
  const int64_t capacity = planned_capacity(config, request_.hardware);
  const bool by_states = states > capacity;
  rejection.config = config;
  rejection.reason = fmt::format("does not fit: {} of states and {} in all at the least, of {}: {}",
                                 format_bytes(states), format_bytes(fullest.ledger.peak_total), format_bytes(capacity),
                                 to_string(by_states ? Obstacle::kStates : Obstacle::kActivations));
  rejection.fix = by_states ? states_fix(config) : "a shorter batch.sequence, or more memory";
  rejections.push_back(std::move(rejection));
}

std::vector<Rejection> Verdicts::rejections() const {
  std::vector<Rejection> all;
  const std::optional<Layout> best = plans_.empty() ? std::nullopt : std::optional(layout_of(plans_[0].config.config));
  for (const SplitKind kind : kAllSplitKinds) {
    if (best && split_kind(*best) == kind) continue;
    add_rejection({.kind = std::string(to_string(kind)), .split = kind},
                  {.has = [kind](const Layout& l) { return split_kind(l) == kind; }},
                  fastest_[static_cast<size_t>(kind)], all);
  }
  for (int zero = 0; zero <= 3 && best; ++zero) {
    if (zero == best->zero) continue;
    const LayoutExplorer::Group group{
        .has = [&](const Layout& l) { return l.tp == best->tp && l.cp == best->cp && l.pp == best->pp; }, .zero = zero};
    add_rejection({.kind = fmt::format("ZeRO-{}", zero)}, group,
                  explorer_.fastest(group, LayoutExplorer::Memory::kCounts,
                                    {.seconds = plans_[0].cost.seconds, .replayed = kReplayedOfLosers}),
                  all);
  }
  return all;
}

Wall Verdicts::wall() const {
  const StepCost& best = plans_[0].cost;
  if (explorer_.fastest({}, LayoutExplorer::Memory::kIgnored, {.seconds = best.seconds / kWorthMemory}))
    return Wall::kMemory;
  const double communication = best[TimePart::kExposedCommunication] + best[TimePart::kOverlapSlowdown];
  return communication > kCommunicationBound * best.seconds ? Wall::kCommunication : Wall::kCompute;
}

void Verdicts::describe_obstacle(SearchResult& result) const {
  const std::optional<SmallLayout> small = smallest_layout(request_, inventory_, space_.ranks());
  FIVEFOLD_CHECK(small, "a space without layouts was searched");
  // With the batch that was asked for, whose data a step holds, as far as the layout can have it.
  RunConfig written = small->written;
  if (request_.base.batch.global > 0) written.batch.global = request_.base.batch.global;
  if (!validate_layout(request_.model, written).empty()) written.batch.global = small->written.batch.global;
  const ResolvedConfig smallest = resolve(written, request_.model).value();
  const RankLedger fullest = fullest_rank(request_.model, inventory_, smallest, request_.hardware);
  const int64_t capacity = planned_capacity(smallest, request_.hardware);
  const int64_t states = fullest.ledger.persistent.total() - fullest.ledger.persistent[Account::kData] -
                         fullest.ledger.persistent[Account::kOther];
  result.smallest_peak = fullest.ledger.peak_total;
  result.smallest_capacity = capacity;
  if (one_layer_bytes(request_.model, inventory_, smallest) > capacity)
    result.obstacle = Obstacle::kOneLayer;
  else
    result.obstacle = states > capacity ? Obstacle::kStates : Obstacle::kActivations;
  add_fixes(result, smallest);
  result.remedies = find_remedies(request_.model, written, request_.hardware, {.written = &request_.base});
}

void Verdicts::add_fixes(SearchResult& result, const ResolvedConfig& smallest) const {
  const int ranks = space_.ranks();
  add_free_keys(request_, inventory_, ranks, result);
  add_more_ranks(request_, inventory_, ranks, result);
  add_shorter_sequence(request_, inventory_, ranks, result);
  result.fixes.push_back({fmt::format("{} a rank instead of {}", format_bytes(result.smallest_peak),
                                      format_bytes(planned_capacity(smallest, request_.hardware))),
                          "with the layout that needs least: " + layout_text(smallest)});
}

}  // namespace fivefold
