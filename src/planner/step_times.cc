#include "planner/step_times.h"

#include <algorithm>

#include "planner/cost.h"
#include "planner/layer_traffic.h"
#include "planner/rank_view.h"
#include "spec/rank_grid.h"

namespace fivefold {
namespace {

class Prediction {
 public:
  Prediction(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
             const HardwareSpec& hardware);
  StepTimes times() const;

 private:
  double pass_seconds(const Unit& unit, const UnitOperations& operations, Pass pass, int count) const;
  double weight_seconds(const Unit& unit, const UnitOperations& operations) const;
  TensorSeconds tensor_seconds(const Unit& unit, const UnitOperations& operations, TapeStep step, Pass pass,
                               const TapeOptions& options = {}) const;
  UnitSeconds unit_seconds(int index) const;
  std::vector<LinkSeconds> transfers() const;

  const ModelSpec& whole_model_;
  RankView part_;
  ShardingPolicy policy_;
  OptimizerStates states_;
  TapeShape tape_;
  WorkShape shape_;
  Rates rates_;
  LinkTimes links_;
  int num_pipeline_ranks_;
};

Prediction::Prediction(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                       const HardwareSpec& hardware)
    : whole_model_(model),
      part_(model, inventory, config, 0),
      policy_(sharding_policy(config)),
      states_(optimizer_states(config.config.optimizer)),
      tape_(tape_shape(config)),
      shape_{.tokens = tape_.tokens,
             .sequence_parts = tape_.split.sequence_parts(),
             .sequence = config.config.batch.sequence,
             .compute = config.compute},
      rates_(hardware, config.compute, rank_placement(config, hardware)),
      links_(hardware, RankGrid::create(config.degrees).value()),
      num_pipeline_ranks_(config.degrees.pp) {}

StepTimes Prediction::times() const {
  const std::vector<LayerSpec>& layers = whole_model_.layers;
  const Inventory& inventory = part_.inventory();
  StepTimes times;
  for (int unit = 0; unit < inventory.num_units(); ++unit) {
    const bool repeats = unit >= 2 && unit < inventory.head() &&
                         layers[static_cast<size_t>(unit) - 1] == layers[static_cast<size_t>(unit) - 2];
    times.units.push_back(repeats ? times.units.back() : unit_seconds(unit));
  }
  times.scalar_all_reduce = links_(CollectiveKind::kAllReduce, GroupKind::kWorld, 16);
  for (const PartialOver over : kAllPartialOver) {
    const int64_t bytes = part_.partial_elements(over) * dtype_bytes(policy_.grads);
    if (bytes == 0) continue;
    const LinkSeconds link = links_(CollectiveKind::kAllReduce, group_of(over), static_cast<double>(bytes));
    times.partial_sums.push_back({group_of(over), Purpose::kGradients, link.seconds, link.seconds});
  }
  times.buffer_calls = {links_, policy_};
  times.num_pipeline_ranks = num_pipeline_ranks_;
  times.transfers = transfers();
  times.overlap_share = rates_.overlap_share();
  times.step_overhead_s = rates_.step_overhead_seconds();
  return times;
}

std::vector<LinkSeconds> Prediction::transfers() const {
  const auto message = static_cast<double>(tape_.stream_tokens() * whole_model_.hidden * dtype_bytes(shape_.compute));
  std::vector<LinkSeconds> seconds;
  for (int from = 0; from < num_pipeline_ranks_; ++from)
    for (int to = 0; to < num_pipeline_ranks_; ++to)
      seconds.push_back(from == to ? LinkSeconds{} : links_.send(GroupKind::kPp, from, to, message));
  return seconds;
}

double Prediction::pass_seconds(const Unit& unit, const UnitOperations& operations, Pass pass, int count) const {
  double seconds = 0;
  for (int i = 0; i < count; ++i)
    seconds += rates_.operation_seconds(operations.operations[static_cast<size_t>(i)].kind, pass,
                                        operation_work(part_.model(), unit, operations, i, pass, shape_));
  return seconds;
}

// Of a layer's backward, the products that make weight gradients.
double Prediction::weight_seconds(const Unit& unit, const UnitOperations& operations) const {
  double seconds = 0;
  for (size_t i = 0; i < operations.operations.size(); ++i) {
    if (operations.operations[i].kind != OperationKind::kLinear) continue;
    OperationWork work = operation_work(part_.model(), unit, operations, static_cast<int>(i), Pass::kBackward, shape_);
    work.gemms.erase(work.gemms.begin());
    seconds += rates_.operation_seconds(OperationKind::kLinear, Pass::kBackward, work);
  }
  return seconds;
}

// Collectives of the tensor and context groups in one pass. What is beside a computation hides for as long as that
// takes.
TensorSeconds Prediction::tensor_seconds(const Unit& unit, const UnitOperations& operations, TapeStep step, Pass pass,
                                         const TapeOptions& options) const {
  TensorSeconds seconds;
  const std::vector<LayerCall> calls = layer_calls(operations, step, tape_, options);
  for (size_t first = 0, end = 0; first < calls.size(); first = end) {
    std::vector<double> each;
    LinkSeconds link;
    do {
      const LayerCall& call = calls[end];
      const LinkSeconds own = links_(call.kind, call.group, static_cast<double>(call.elements * call.element_bytes));
      each.push_back(own.seconds);
      link = link + own;
    } while (++end < calls.size() && calls[end].joined);
    if (link.seconds == 0) continue;
    const LayerCall& call = calls[first];
    double beside = 0;
    if (call.beside > 0) {
      const OperationKind kind = operations.operations[static_cast<size_t>(call.operation)].kind;
      beside =
          call.beside * rates_.operation_seconds(
                            kind, pass, operation_work(part_.model(), unit, operations, call.operation, pass, shape_));
    }
    const double hidden = std::min(1.0, beside / link.seconds);
    seconds.hidden = seconds.hidden + LinkSeconds{hidden * link.seconds, hidden * link.moving};
    seconds.exposed = seconds.exposed + LinkSeconds{(1 - hidden) * link.seconds, (1 - hidden) * link.moving};
    for (size_t i = first; i < end; ++i)
      if (each[i - first] > 0)
        seconds.calls.push_back({calls[i].group, calls[i].purpose, each[i - first], (1 - hidden) * each[i - first]});
  }
  return seconds;
}

UnitSeconds Prediction::unit_seconds(int index) const {
  const Unit& unit = part_.inventory().units[static_cast<size_t>(index)];
  const UnitOperations operations =
      unit_operations(part_.model(), part_.inventory(), index, part_.split(), part_.context());
  const int count = static_cast<int>(operations.operations.size());
  UnitSeconds s;
  s.backward = pass_seconds(unit, operations, Pass::kBackward, count);
  if (unit.kind == UnitKind::kHead) {
    // The loss's forward is within its kBackward work; the norm's is not.
    s.head = s.backward + pass_seconds(unit, operations, Pass::kForward, 1);
    s.tensor_head = tensor_seconds(unit, operations, TapeStep::kLoss, Pass::kBackward);
  } else {
    s.tensor_forward = tensor_seconds(unit, operations, TapeStep::kForward, Pass::kForward);
    s.tensor_backward = tensor_seconds(unit, operations, TapeStep::kBackward, Pass::kBackward);
    if (unit.kind == UnitKind::kLayer) {
      s.tensor_recompute = tensor_seconds(unit, operations, TapeStep::kRecompute, Pass::kForward);
      s.tensor_recompute_unused =
          tensor_seconds(unit, operations, TapeStep::kRecompute, Pass::kForward, {.output_unused = true});
      s.tensor_backward_input = tensor_seconds(unit, operations, TapeStep::kBackwardInput, Pass::kBackward);
      s.tensor_backward_weight = tensor_seconds(unit, operations, TapeStep::kBackwardWeight, Pass::kBackward);
      s.backward_weight = weight_seconds(unit, operations);
      s.backward_input = s.backward - s.backward_weight;
    }
    s.forward = pass_seconds(unit, operations, Pass::kForward, count);
    s.recompute = s.forward;
    s.recompute_unused = pass_seconds(unit, operations, Pass::kForward, num_recomputed_operations(operations, true));
  }
  s.elements = unit.padded_numel(policy_.shards);
  const auto full = static_cast<double>(s.elements);
  const double shard = full / policy_.shards;
  const auto grads = static_cast<double>(dtype_bytes(policy_.grads));
  s.optimizer = rates_.stream_seconds(StreamKind::kOptimizer, shard * optimizer_bytes_per_element(policy_, states_));
  s.sum_of_squares = rates_.stream_seconds(StreamKind::kSumOfSquares, shard * grads);
  s.accumulate = rates_.stream_seconds(StreamKind::kAccumulate, full * accumulate_bytes_per_element(policy_));
  return s;
}

}  // namespace

LinkSeconds BufferCalls::gather(double elements) const {
  if (!links) return {};
  return (*links)(CollectiveKind::kAllGather, GroupKind::kShard,
                  elements * static_cast<double>(dtype_bytes(sharding.compute)));
}

LinkSeconds BufferCalls::reduce_scatter(double elements) const {
  if (!links) return {};
  const DType dtype = sharding.shards_grads() ? sharding.compute : sharding.grads;
  return (*links)(CollectiveKind::kReduceScatter, GroupKind::kShard,
                  elements * static_cast<double>(dtype_bytes(dtype)));
}

LinkSeconds BufferCalls::all_reduce(double elements) const {
  if (!links) return {};
  return (*links)(CollectiveKind::kAllReduce, GroupKind::kReplicate,
                  elements / sharding.shards * static_cast<double>(dtype_bytes(sharding.grads)));
}

StepTimes no_step_times(int num_units, int num_pipeline_ranks) {
  StepTimes times;
  times.units.resize(static_cast<size_t>(num_units));
  times.num_pipeline_ranks = num_pipeline_ranks;
  times.transfers.resize(static_cast<size_t>(num_pipeline_ranks) * static_cast<size_t>(num_pipeline_ranks));
  return times;
}

StepTimes predict_step_times(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                             const HardwareSpec& hardware) {
  return Prediction(model, inventory, config, hardware).times();
}

}  // namespace fivefold
