#include "planner/cost.h"

#include <algorithm>
#include <functional>

#include "planner/link_times.h"
#include "planner/rank_view.h"
#include "planner/tensor_traffic.h"

namespace fivefold {
namespace {

struct TensorSeconds {
  LinkSeconds exposed, hidden;
};

struct UnitSeconds {
  TensorSeconds tensor_forward, tensor_recompute, tensor_recompute_unused, tensor_backward, tensor_head;
  double forward = 0, recompute = 0, recompute_unused = 0, backward = 0, head = 0;
  double optimizer = 0, accumulate = 0, sum_of_squares = 0;
  LinkSeconds gather, reduce_scatter, all_reduce;
};

class UnitTimes {
 public:
  UnitTimes(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
            const HardwareSpec& hardware)
      : part_(model, inventory, config, 0),
        policy_(sharding_policy(config)),
        states_(optimizer_states(config.config.optimizer)),
        tape_(tape_shape(config)),
        shape_{.tokens = tape_.tokens,
               .sequence_parts = tape_.split.sequence_parts(),
               .sequence = config.config.batch.sequence,
               .compute = config.compute},
        rates_(hardware, config.compute, rank_placement(config, hardware)),
        links_(hardware, RankGrid::create(config.degrees).value()) {
    for (int unit = 0; unit < inventory.num_units(); ++unit) {
      const bool repeats = unit >= 2 && unit < inventory.head() &&
                           model.layers[static_cast<size_t>(unit) - 1] == model.layers[static_cast<size_t>(unit) - 2];
      seconds_.push_back(repeats ? seconds_.back() : unit_seconds(unit));
    }
    scalar_all_reduce_ = links_(CollectiveKind::kAllReduce, GroupKind::kWorld, 16);
    for (const PartialOver over : {PartialOver::kTensorGroup, PartialOver::kKvHolders}) {
      const int64_t bytes = part_.partial_elements(over) * dtype_bytes(policy_.grads);
      const GroupKind group = over == PartialOver::kTensorGroup ? GroupKind::kTp : GroupKind::kKvHead;
      if (bytes > 0) partial_sums_ += links_(CollectiveKind::kAllReduce, group, static_cast<double>(bytes)).seconds;
    }
  }

  const UnitSeconds& operator[](int unit) const { return seconds_[static_cast<size_t>(unit)]; }
  const Rates& rates() const { return rates_; }
  const LinkSeconds& scalar_all_reduce() const { return scalar_all_reduce_; }
  double partial_sums() const { return partial_sums_; }
  const Inventory& inventory() const { return part_.inventory(); }
  int num_units() const { return static_cast<int>(seconds_.size()); }

 private:
  double pass_seconds(const Unit& unit, const UnitOperations& operations, Pass pass, int count) const {
    double seconds = 0;
    for (int i = 0; i < count; ++i)
      seconds += rates_.operation_seconds(operations.operations[static_cast<size_t>(i)].kind, pass,
                                          operation_work(part_.model(), unit, operations, i, pass, shape_));
    return seconds;
  }

  // Collectives of the tensor group in one pass: those that a product of the same operation hides, and the others.
  TensorSeconds tensor_seconds(const UnitOperations& operations, TapeStep step, const TapeOptions& options = {}) const {
    TensorSeconds seconds;
    for (const TensorCall& call : tensor_calls(operations, step, tape_, options)) {
      LinkSeconds& sum = call.hidden ? seconds.hidden : seconds.exposed;
      sum = sum + links_(call.kind, GroupKind::kTp, static_cast<double>(call.elements * call.element_bytes));
    }
    return seconds;
  }

  UnitSeconds unit_seconds(int index) const {
    const Unit& unit = part_.inventory().units[static_cast<size_t>(index)];
    const UnitOperations operations = unit_operations(part_.model(), part_.inventory(), index, part_.split());
    const int count = static_cast<int>(operations.operations.size());
    UnitSeconds s;
    s.backward = pass_seconds(unit, operations, Pass::kBackward, count);
    if (unit.kind == UnitKind::kHead) {
      // The loss's forward is within its kBackward work; the norm's is not.
      s.head = s.backward + pass_seconds(unit, operations, Pass::kForward, 1);
      s.tensor_head = tensor_seconds(operations, TapeStep::kLoss);
    } else {
      s.tensor_forward = tensor_seconds(operations, TapeStep::kForward);
      s.tensor_backward = tensor_seconds(operations, TapeStep::kBackward);
      if (unit.kind == UnitKind::kLayer) {
        s.tensor_recompute = tensor_seconds(operations, TapeStep::kRecompute);
        s.tensor_recompute_unused = tensor_seconds(operations, TapeStep::kRecompute, {.output_unused = true});
      }
      s.forward = pass_seconds(unit, operations, Pass::kForward, count);
      s.recompute = s.forward;
      s.recompute_unused = pass_seconds(unit, operations, Pass::kForward, num_recomputed_operations(operations, true));
    }
    const auto full = static_cast<double>(unit.padded_numel(policy_.shards));
    const double shard = full / policy_.shards;
    const auto compute = static_cast<double>(dtype_bytes(policy_.compute));
    const auto grads = static_cast<double>(dtype_bytes(policy_.grads));
    s.optimizer = rates_.stream_seconds(StreamKind::kOptimizer, shard * optimizer_bytes_per_element(policy_, states_));
    s.sum_of_squares = rates_.stream_seconds(StreamKind::kSumOfSquares, shard * grads);
    s.accumulate = rates_.stream_seconds(StreamKind::kAccumulate, full * accumulate_bytes_per_element(policy_));
    s.gather = links_(CollectiveKind::kAllGather, GroupKind::kShard, full * compute);
    s.reduce_scatter =
        links_(CollectiveKind::kReduceScatter, GroupKind::kShard, full * (policy_.shards_grads() ? compute : grads));
    s.all_reduce = links_(CollectiveKind::kAllReduce, GroupKind::kReplicate, shard * grads);
    return s;
  }

  RankView part_;
  ShardingPolicy policy_;
  OptimizerStates states_;
  TapeShape tape_;
  WorkShape shape_;
  Rates rates_;
  LinkTimes links_;
  std::vector<UnitSeconds> seconds_;
  LinkSeconds scalar_all_reduce_;
  double partial_sums_ = 0;
};

// One rank's two timelines. Collectives run one after the other in the order in which they are issued.
class StepClock {
 public:
  using Observer = std::function<void(const Instruction&, double begin, double end, bool communication)>;

  explicit StepClock(const UnitTimes& times)
      : times_(times),
        gathers_(static_cast<size_t>(times.num_units())),
        reductions_(static_cast<size_t>(times.num_units())) {}

  void run(const Program& program, const Observer& observer = nullptr) {
    for (const Instruction& instruction : program.instructions) {
      const double begin = now_;
      execute(instruction, observer);
      if (observer && now_ > begin) observer(instruction, begin, now_, false);
    }
    add(TimePart::kOverhead, times_.rates().step_overhead_seconds());
  }
  // Counts from here; what is under way stays so.
  void restart() {
    begin_ = now_;
    cost_ = {};
  }
  StepCost cost() const {
    StepCost cost = cost_;
    cost.seconds = now_ - begin_;
    return cost;
  }

 private:
  void add(TimePart part, double seconds) {
    cost_.parts[static_cast<size_t>(part)] += seconds;
    now_ += seconds;
  }
  void compute(TimePart part, double seconds) {
    const double together = std::clamp(communication_free_ - now_, 0.0, seconds);
    add(part, seconds);
    add(TimePart::kOverlapSlowdown, together * moving_share_ * times_.rates().overlap_share());
  }
  // Puts a collective behind those that are under way and returns when it starts. While it waits for a simulated link
  // it takes nothing from what computes; that of all that is under way is spread evenly.
  double start(const LinkSeconds& link) {
    const double start = std::max(now_, communication_free_), left = start - now_;
    communication_free_ = start + link.seconds;
    cost_.communication_seconds += link.seconds;
    if (link.seconds > 0) moving_share_ = (moving_share_ * left + link.moving) / (left + link.seconds);
    return start;
  }
  void issue(const Instruction& instruction, const LinkSeconds& link, std::vector<double>& arrivals,
             const Observer& observer) {
    const double begin = start(link);
    arrivals[static_cast<size_t>(instruction.unit)] = communication_free_;
    if (observer && link.seconds > 0) observer(instruction, begin, communication_free_, true);
  }
  void wait(const std::vector<double>& arrivals, int unit) {
    add(TimePart::kExposedCommunication, std::max(0.0, arrivals[static_cast<size_t>(unit)] - now_));
  }
  // A computation with collectives of the tensor group inside. They queue behind what is under way; those that a
  // product hides cost what they take beyond it, which is at most the computation.
  void compute(TimePart part, double seconds, const TensorSeconds& tensor) {
    compute(part, seconds);
    const double exposed = tensor.exposed.seconds, hidden = tensor.hidden.seconds;
    if (exposed + hidden == 0) return;
    cost_.communication_seconds += exposed + hidden;
    const double queued = std::max(0.0, communication_free_ - now_);
    add(TimePart::kOverlapSlowdown, std::min(tensor.hidden.moving, seconds) * times_.rates().overlap_share());
    add(TimePart::kExposedCommunication, queued + exposed + std::max(0.0, hidden - seconds));
    communication_free_ = std::max(communication_free_, now_);
  }
  void blocking(double seconds) {
    cost_.communication_seconds += seconds;
    add(TimePart::kExposedCommunication, std::max(now_, communication_free_) + seconds - now_);
    communication_free_ = now_;
  }

  void execute(const Instruction& instruction, const Observer& observer) {
    const int unit = instruction.unit;
    switch (instruction.op) {
      case Opcode::kCountTokens:
        start(times_.scalar_all_reduce());
        count_ = communication_free_;
        return;
      case Opcode::kWaitCount:
        return add(TimePart::kExposedCommunication, std::max(0.0, count_ - now_));
      case Opcode::kUnshard:
      case Opcode::kGatherParameters:
        return issue(instruction, times_[unit].gather, gathers_, observer);
      case Opcode::kWaitUnshard:
      case Opcode::kWaitParameters:
        return wait(gathers_, unit);
      case Opcode::kForward:
        return compute(TimePart::kForward, times_[unit].forward, times_[unit].tensor_forward);
      case Opcode::kRecompute:
        return instruction.output_unused
                   ? compute(TimePart::kRecompute, times_[unit].recompute_unused, times_[unit].tensor_recompute_unused)
                   : compute(TimePart::kRecompute, times_[unit].recompute, times_[unit].tensor_recompute);
      case Opcode::kLoss:
        return compute(TimePart::kHead, times_[unit].head, times_[unit].tensor_head);
      case Opcode::kBackward:
        return compute(TimePart::kBackward, times_[unit].backward, times_[unit].tensor_backward);
      case Opcode::kAccumulateGrads:
        return compute(TimePart::kGradients, times_[unit].accumulate);
      case Opcode::kReduceGrads:
        return issue(
            instruction,
            instruction.last ? times_[unit].reduce_scatter + times_[unit].all_reduce : times_[unit].reduce_scatter,
            reductions_, observer);
      case Opcode::kWaitReduce:
        return wait(reductions_, unit);
      case Opcode::kSumPartialGrads:
        return blocking(times_.partial_sums());
      case Opcode::kGradNorm: {
        for (int i = 0; i < times_.num_units(); ++i) compute(TimePart::kGradients, times_[i].sum_of_squares);
        return blocking(times_.scalar_all_reduce().seconds);
      }
      case Opcode::kOptimizerStep:
        return compute(TimePart::kOptimizer, times_[unit].optimizer);
      case Opcode::kReshard:
      case Opcode::kAllocateGrads:
        return;
    }
  }

  const UnitTimes& times_;
  double now_ = 0, begin_ = 0, communication_free_ = 0;
  double moving_share_ = 0;                   // of what is under way: bytes that the machine itself moves
  double count_ = 0;                          // when the count of tokens ends
  std::vector<double> gathers_, reductions_;  // when the latest one of a unit ends
  StepCost cost_;
};

StepCost steady_state(const UnitTimes& times, const Program& program) {
  StepClock clock(times);
  clock.run(program);
  clock.restart();
  clock.run(program);
  return clock.cost();
}

Program program_of(const Inventory& inventory, const ResolvedConfig& config, int64_t num_microbatches) {
  return lower(sequential_schedule(static_cast<int>(num_microbatches)), inventory, lowering_options(config));
}

}  // namespace

std::string_view to_string(TimePart part) {
  static constexpr std::string_view kNames[] = {
      "forward",          "recompute", "backward", "head", "gradients", "optimizer", "exposed_communication",
      "overlap_slowdown", "overhead"};
  return kNames[static_cast<size_t>(part)];
}

RankPlacement rank_placement(const ResolvedConfig& config, const HardwareSpec& hardware) {
  if (hardware.device.cores == 0) return {};
  return {.threads = threads_per_rank(config, static_cast<int>(hardware.device.cores)),
          .ranks = config.degrees.world()};
}

// Note [Periods of a step]
// Microbatches between the first and the last are alike, so a step of m > 3 takes what one of 3 takes and m - 3 times
// what the third added to a step of 2.
StepCost predict_cost(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                      const HardwareSpec& hardware) {
  const UnitTimes times(model, inventory, config, hardware);
  const int64_t m = config.num_microbatches;
  StepCost cost = steady_state(times, program_of(inventory, config, std::min<int64_t>(m, 3)));
  if (m <= 3) return cost;
  const StepCost two = steady_state(times, program_of(inventory, config, 2));
  const auto extend = [&](double& three, double of_two) { three += static_cast<double>(m - 3) * (three - of_two); };
  extend(cost.seconds, two.seconds);
  extend(cost.communication_seconds, two.communication_seconds);
  for (size_t i = 0; i < cost.parts.size(); ++i) extend(cost.parts[i], two.parts[i]);
  return cost;
}

std::vector<TimelineEntry> step_timeline(const ModelSpec& model, const Inventory& inventory,
                                         const ResolvedConfig& config, const HardwareSpec& hardware) {
  const UnitTimes times(model, inventory, config, hardware);
  const Program program = training_program(inventory, config);
  std::vector<TimelineEntry> timeline;
  StepClock(times).run(program, [&](const Instruction& instruction, double begin, double end, bool communication) {
    timeline.push_back({instruction, begin, end, communication});
  });
  return timeline;
}

double peak_flops_per_s(const ResolvedConfig& config, const HardwareSpec& hardware) {
  const double peak = matrix_rate(hardware.device.peak_flops_per_s, config.compute);
  const double device = peak > 0 ? peak : matrix_rate(hardware.device.peak_flops_per_s, DType::kFloat32);
  if (hardware.device.cores == 0) return device * config.degrees.world();
  const RankPlacement placement = rank_placement(config, hardware);
  const double busy = static_cast<double>(placement.threads) * placement.ranks;
  return device * std::min(1.0, busy / static_cast<double>(hardware.device.cores));
}

}  // namespace fivefold
