#include "planner/prediction_memo.h"

#include <algorithm>

#include "planner/cost.h"
#include "planner/layer_traffic.h"
#include "spec/rank_grid.h"

namespace fivefold {
namespace {

// One configuration's units, one after the other.
class UnitClock {
 public:
  UnitClock(PredictionMemo& memo, const ResolvedConfig& config)
      : part_(memo.model(), memo.inventory(), config, 0, memo.part(config)),
        policy_(sharding_policy(config)),
        states_(optimizer_states(config.config.optimizer)),
        tape_(tape_shape(config)),
        shape_{.tokens = tape_.tokens,
               .sequence_parts = tape_.split.sequence_parts(),
               .sequence = config.config.batch.sequence,
               .compute = config.compute},
        rates_(memo.rates(config)),
        links_(memo.links(config)) {}

  PassSeconds passes(int index) const;
  StateSeconds states(int index) const;

 private:
  double pass_seconds(const Unit& unit, const UnitOperations& operations, Pass pass, int count) const;
  double rebuild_seconds(const Unit& unit, const UnitOperations& operations) const;
  double weight_seconds(const Unit& unit, const UnitOperations& operations) const;
  TensorSeconds tensor_seconds(const Unit& unit, const UnitOperations& operations, TapeStep step,
                               const TapeOptions& options = {}) const;

  RankView part_;
  ShardingPolicy policy_;
  OptimizerStates states_;
  TapeShape tape_;
  WorkShape shape_;
  const Rates& rates_;
  const LinkTimes& links_;
};

double UnitClock::pass_seconds(const Unit& unit, const UnitOperations& operations, Pass pass, int count) const {
  double seconds = 0;
  for (int i = 0; i < count; ++i)
    seconds += rates_.operation_seconds(operations.operations[static_cast<size_t>(i)].kind, pass,
                                        operation_work(part_.model(), unit, operations, i, pass, shape_));
  return seconds;
}

// What a layer's backward runs again.
double UnitClock::rebuild_seconds(const Unit& unit, const UnitOperations& operations) const {
  double seconds = 0;
  for (const int i : rebuilt_operations(operations))
    seconds += rates_.operation_seconds(operations.operations[static_cast<size_t>(i)].kind, Pass::kForward,
                                        operation_work(part_.model(), unit, operations, i, Pass::kForward, shape_));
  return seconds;
}

// Of a layer's backward, the products that make weight gradients.
double UnitClock::weight_seconds(const Unit& unit, const UnitOperations& operations) const {
  double seconds = 0;
  for (size_t i = 0; i < operations.operations.size(); ++i) {
    if (operations.operations[i].kind != OperationKind::kLinear) continue;
    const OperationWork work = weight_gradient_work(unit, operations.operations[i], shape_);
    seconds += rates_.operation_seconds(OperationKind::kLinear, Pass::kBackward, work);
  }
  return seconds;
}

// Collectives of the tensor and context groups in one pass. What is beside a computation hides for as long as that
// takes.
TensorSeconds UnitClock::tensor_seconds(const Unit& unit, const UnitOperations& operations, TapeStep step,
                                        const TapeOptions& options) const {
  TensorSeconds seconds;
  const std::vector<LayerCall> calls = layer_calls(operations, step, tape_, options);
  for (size_t first = 0, end = 0; first < calls.size(); first = end) {
    // What a batch receives comes in beside what it sends, which leaves as one message.
    const auto bytes = [&](const LayerCall& call) {
      const bool receives = call.kind == CollectiveKind::kRecv;
      return receives ? 0.0 : static_cast<double>(call.elements * call.element_bytes);
    };
    double sum = 0;
    do sum += bytes(calls[end]);
    while (++end < calls.size() && calls[end].joined);
    const LayerCall& call = calls[first];
    const LinkSeconds link = links_(call.kind, call.group, sum);
    if (link.seconds == 0) continue;
    double beside = 0;
    if (call.beside > 0) {
      const OperationKind kind = operations.operations[static_cast<size_t>(call.operation)].kind;
      beside = call.beside *
               rates_.operation_seconds(
                   kind, call.pass, operation_work(part_.model(), unit, operations, call.operation, call.pass, shape_));
    }
    const double hidden = std::min(1.0, beside / link.seconds);
    seconds.hidden = seconds.hidden + LinkSeconds{hidden * link.seconds, hidden * link.moving};
    seconds.exposed = seconds.exposed + LinkSeconds{(1 - hidden) * link.seconds, (1 - hidden) * link.moving};
    for (size_t i = first; i < end; ++i) {
      const double own = sum > 0 ? link.seconds * bytes(calls[i]) / sum : link.seconds;
      if (own > 0) seconds.calls.push_back({calls[i].group, calls[i].purpose, own, (1 - hidden) * own});
    }
  }
  return seconds;
}

PassSeconds UnitClock::passes(int index) const {
  const Unit& unit = part_.inventory().units[static_cast<size_t>(index)];
  const UnitOperations operations =
      unit_operations(part_.model(), part_.inventory(), index, part_.split(), part_.context(), part_.dropped());
  const int count = static_cast<int>(operations.operations.size());
  PassSeconds s;
  s.backward = pass_seconds(unit, operations, Pass::kBackward, count) + rebuild_seconds(unit, operations);
  if (unit.kind == UnitKind::kHead) {
    // The loss's forward is within its kBackward work; the norm's is not.
    s.head = s.backward + pass_seconds(unit, operations, Pass::kForward, 1);
    s.tensor_head = tensor_seconds(unit, operations, TapeStep::kLoss);
  } else {
    s.tensor_forward = tensor_seconds(unit, operations, TapeStep::kForward);
    s.tensor_backward = tensor_seconds(unit, operations, TapeStep::kBackward);
    if (unit.kind == UnitKind::kLayer) {
      s.tensor_recompute = tensor_seconds(unit, operations, TapeStep::kRecompute);
      s.tensor_recompute_unused = tensor_seconds(unit, operations, TapeStep::kRecompute, {.output_unused = true});
      s.tensor_backward_input = tensor_seconds(unit, operations, TapeStep::kBackwardInput);
      s.tensor_backward_weight = tensor_seconds(unit, operations, TapeStep::kBackwardWeight);
      s.backward_weight = weight_seconds(unit, operations);
      s.backward_input = s.backward - s.backward_weight;
    }
    s.forward = pass_seconds(unit, operations, Pass::kForward, count);
    s.recompute_unused = pass_seconds(unit, operations, Pass::kForward, num_recomputed_operations(operations, true));
    s.recompute = s.forward;
  }
  return s;
}

StateSeconds UnitClock::states(int index) const {
  const Unit& unit = part_.inventory().units[static_cast<size_t>(index)];
  StateSeconds s;
  s.elements = unit.padded_numel(policy_.shards);
  s.gathered_bytes =
      policy_.shards_params() ? gathered_bytes(unit, policy_) : s.elements * dtype_bytes(policy_.compute);
  const auto full = static_cast<double>(s.elements);
  const double shard = full / policy_.shards;
  const auto grads = static_cast<double>(dtype_bytes(policy_.grads));
  s.optimizer = rates_.stream_seconds(StreamKind::kOptimizer, shard * optimizer_bytes_per_element(policy_, states_));
  s.sum_of_squares = rates_.stream_seconds(StreamKind::kSumOfSquares, shard * grads);
  s.accumulate = rates_.stream_seconds(StreamKind::kAccumulate, full * accumulate_bytes_per_element(policy_));
  return s;
}

}  // namespace

PredictionMemo::StateKey PredictionMemo::state_key(const ResolvedConfig& config) {
  const ShardingPolicy policy = sharding_policy(config);
  const Degrees& d = config.degrees;
  return {d.tp,          d.cp,           d.dp,         d.pp,           policy.zero,
          policy.shards, policy.compute, policy.grads, policy.moments, policy.master};
}

Transfers transfers_over(const LinkTimes& links, int num_ranks, double bytes) {
  const auto send = [&](int from, int to) { return links.send(GroupKind::kPp, from, to, bytes); };
  const int last = num_ranks - 1;
  Transfers transfers;
  for (int from = 0; from <= last; ++from)
    transfers.neighbours.push_back(
        {from > 0 ? send(from, from - 1) : LinkSeconds{}, from < last ? send(from, from + 1) : LinkSeconds{}});
  if (last > 1) transfers.around = {send(last, 0), send(0, last)};
  return transfers;
}

const RankPart* PredictionMemo::part(const ResolvedConfig& config) {
  if (config.degrees.tp == 1) return nullptr;
  std::unique_ptr<const RankPart>& part = parts_[{config.degrees.tp, config.config.parallel.sp}];
  if (part == nullptr) part = std::make_unique<const RankPart>(rank_part(model_, config, 0));
  return part.get();
}

const LinkTimes& PredictionMemo::links(const ResolvedConfig& config) {
  const Degrees& d = config.degrees;
  const std::tuple key(d.dp, d.tp, d.cp, d.pp, d.kv_holders, d.shard_size);
  const auto found = links_.find(key);
  if (found != links_.end()) return found->second;
  return links_.emplace(key, LinkTimes(hardware_, RankGrid::create(d).value())).first->second;
}

const Rates& PredictionMemo::rates(const ResolvedConfig& config) {
  const RankPlacement placement = rank_placement(config, hardware_);
  const std::tuple key(config.compute, placement.threads, placement.ranks);
  const auto found = rates_.find(key);
  if (found != rates_.end()) return found->second;
  return rates_.emplace(key, Rates(hardware_, config.compute, placement)).first->second;
}

const Transfers& PredictionMemo::transfers(const ResolvedConfig& config) {
  const Degrees& d = config.degrees;
  const int64_t bytes = tape_shape(config).stream_tokens() * model_.hidden * dtype_bytes(config.compute);
  const std::tuple key(d.dp, d.tp, d.cp, d.pp, bytes);
  const auto found = transfers_.find(key);
  if (found != transfers_.end()) return found->second;
  return transfers_.emplace(key, transfers_over(links(config), d.pp, static_cast<double>(bytes))).first->second;
}

// Groups of tensor and context parallelism lie the same way in the ranks whatever divides the rest.
const std::vector<PassSeconds>& PredictionMemo::passes(const ResolvedConfig& config) {
  const ParallelConfig& parallel = config.config.parallel;
  std::vector<PassSeconds>& all =
      passes_[{parallel.tp, parallel.sp, parallel.cp, parallel.cp_kind, config.config.batch.micro, config.compute,
               config.degrees.world(), parallel.threads, dropped_tensors(config.config.recompute)}];
  if (!all.empty()) return all;
  const UnitClock clock(*this, config);
  for (int unit = 0; unit < inventory_.num_units(); ++unit) {
    const bool repeats = unit >= 2 && unit < inventory_.head() &&
                         model_.layers[static_cast<size_t>(unit) - 1] == model_.layers[static_cast<size_t>(unit) - 2];
    all.push_back(repeats ? PassSeconds(all.back()) : clock.passes(unit));
  }
  return all;
}

const StateSums& PredictionMemo::state_sums(const ResolvedConfig& config) {
  const auto [found, fresh] = state_sums_.try_emplace(state_key(config));
  StateSums& sums = found->second;
  if (!fresh) return sums;
  for (std::vector<double>* sum : {&sums.ends, &sums.accumulate, &sums.gather, &sums.reduce_scatter, &sums.all_reduce})
    sum->push_back(0);
  const BufferCalls calls{links(config), sharding_policy(config)};
  const std::vector<StateSeconds>& all = states(config);
  int64_t elements = 0, gathered = 0;
  for (const StateSeconds& state : all) {
    elements += state.elements;
    gathered += state.gathered_bytes;
  }
  // With buckets several units are one call: of each its share of one call for all units, which is less.
  const bool joins = config.config.parallel.bucket_layers > 1;
  const auto add = [&](std::vector<double>& sum, LinkSeconds (BufferCalls::*call)(double) const, int64_t all_units,
                       int64_t unit) {
    const auto whole = static_cast<double>(all_units), part = static_cast<double>(unit);
    if (unit == 0) return sum.push_back(sum.back());
    sum.push_back(sum.back() + (joins ? (calls.*call)(whole).seconds * part / whole : (calls.*call)(part).seconds));
  };
  for (const StateSeconds& state : all) {
    sums.ends.push_back(sums.ends.back() + state.sum_of_squares + state.optimizer);
    sums.accumulate.push_back(sums.accumulate.back() + state.accumulate);
    add(sums.gather, &BufferCalls::gather, gathered, state.gathered_bytes);
    add(sums.reduce_scatter, &BufferCalls::reduce_scatter, elements, state.elements);
    add(sums.all_reduce, &BufferCalls::all_reduce, elements, state.elements);
  }
  return sums;
}

const std::vector<StateSeconds>& PredictionMemo::states(const ResolvedConfig& config) {
  std::vector<StateSeconds>& all = states_[state_key(config)];
  if (!all.empty()) return all;
  const UnitClock clock(*this, config);
  for (int unit = 0; unit < inventory_.num_units(); ++unit) {
    const bool repeats = unit >= 2 && unit < inventory_.head() &&
                         model_.layers[static_cast<size_t>(unit) - 1] == model_.layers[static_cast<size_t>(unit) - 2];
    all.push_back(repeats ? StateSeconds(all.back()) : clock.states(unit));
  }
  return all;
}

std::shared_ptr<const Schedule> PredictionMemo::schedule(const ResolvedConfig& config) {
  constexpr size_t kMostActions = size_t{1} << 22;
  const ParallelConfig& parallel = config.config.parallel;
  const std::tuple key(parallel.schedule, parallel.pp, parallel.vpp, config.num_microbatches);
  if (const auto found = schedules_.find(key); found != schedules_.end()) return found->second;
  auto schedule = std::make_shared<const Schedule>(pipeline_schedule(config));
  size_t actions = 0;
  for (const auto& rank : schedule->ranks) actions += rank.size();
  if (num_actions_ + actions > kMostActions) {
    schedules_.clear();
    num_actions_ = 0;
  }
  num_actions_ += actions;
  return schedules_[key] = std::move(schedule);
}

}  // namespace fivefold
