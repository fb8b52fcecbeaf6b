#include "planner/peak_bytes.h"

#include <algorithm>

#include "planner/ledger.h"

namespace fivefold {
namespace {

int64_t stream_bytes(const ModelSpec& model, const ResolvedConfig& config) {
  return tape_shape(config).stream_tokens() * model.hidden * dtype_bytes(config.compute);
}

auto pass_key(const ResolvedConfig& config) {
  const ParallelConfig& parallel = config.config.parallel;
  return std::tuple(parallel.tp, parallel.sp, parallel.cp, parallel.cp_kind, config.config.batch.micro, config.compute,
                    dropped_tensors(config.config.recompute));
}

}  // namespace

// What is live while a Program is replayed, and the most of it.
struct PeakBytes::Walk {
  int64_t live = 0, peak = 0;

  void take(const Step& step) {
    peak = std::max(peak, live + step.most);
    live += step.net;
  }
  void add(int64_t bytes) {
    live += bytes;
    peak = std::max(peak, live);
  }
};

// Frees of what another tape allocated have the bytes that it had there: `sizes` remembers them by owner and id.
PeakBytes::UnitSteps PeakBytes::unit_steps(const ResolvedConfig& config, int unit) {
  const RankView part(memo_.model(), memo_.inventory(), config, 0, memo_.part(config));
  const UnitOperations operations =
      unit_operations(part.model(), part.inventory(), unit, part.split(), part.context(), part.dropped());
  const TapeShape shape = tape_shape(config);
  const int64_t stream = stream_bytes(memo_.model(), config);
  std::map<std::pair<Owner, int>, int64_t> sizes{{{Owner::kMicrobatch, kStreamGradientId}, stream}};
  const auto sum = [&](TapeStep tape_step, const TapeOptions& options = {}) {
    Walk walk;
    for (const TapeEvent& event : tape(operations, tape_step, shape, options)) {
      if (event.allocate) sizes[{event.owner, event.id}] = event.bytes;
      if (event.allocate)
        walk.add(event.bytes);
      else
        walk.live -= event.owner == Owner::kPreviousUnit ? stream : sizes.at({event.owner, event.id});
    }
    return Step{.net = walk.live, .most = walk.peak};
  };
  UnitSteps steps;
  if (operations.kind == UnitKind::kHead) {
    steps.loss = sum(TapeStep::kLoss);
    return steps;
  }
  for (const Keep keep : {Keep::kAll, Keep::kInputOnly, Keep::kNothing})
    steps.forward[static_cast<size_t>(keep)] = sum(TapeStep::kForward, {.keep = keep});
  if (operations.kind == UnitKind::kLayer) {
    steps.recompute[0] = sum(TapeStep::kRecompute);
    steps.recompute[1] = sum(TapeStep::kRecompute, {.output_unused = true});
    steps.backward_input = sum(TapeStep::kBackwardInput);
    steps.backward_weight = sum(TapeStep::kBackwardWeight);
    for (const SavedTensor& tensor : saved_tensors(operations, "", config.compute))
      steps.saved += saved_bytes(tensor, shape);
  }
  steps.backward = sum(TapeStep::kBackward);
  return steps;
}

const std::vector<PeakBytes::UnitSteps>& PeakBytes::steps(const ResolvedConfig& config) {
  std::vector<UnitSteps>& all = steps_[pass_key(config)];
  if (!all.empty()) return all;
  const ModelSpec& model = memo_.model();
  for (int unit = 0; unit < memo_.inventory().num_units(); ++unit) {
    const bool repeats = unit >= 2 && unit < memo_.inventory().head() &&
                         model.layers[static_cast<size_t>(unit) - 1] == model.layers[static_cast<size_t>(unit) - 2];
    all.push_back(repeats ? UnitSteps(all.back()) : unit_steps(config, unit));
  }
  return all;
}

const std::vector<int64_t>& PeakBytes::saved(const ResolvedConfig& config) {
  std::vector<int64_t>& all = saved_[pass_key(config)];
  if (!all.empty()) return all;
  for (const UnitSteps& unit : steps(config)) all.push_back(unit.saved);
  return all;
}

const std::vector<int64_t>& PeakBytes::backward_most(const ResolvedConfig& config) {
  std::vector<int64_t>& all = backward_most_[pass_key(config)];
  if (!all.empty()) return all;
  for (const UnitSteps& unit : steps(config)) all.push_back(std::min(unit.backward.most, unit.backward_input.most));
  return all;
}

const std::vector<int64_t>& PeakBytes::states_before(const ResolvedConfig& config) {
  const ShardingPolicy policy = sharding_policy(config);
  std::vector<int64_t>& all = states_[{config.degrees.tp, config.config.parallel.sp, policy.zero, policy.shards,
                                       policy.compute, policy.grads, policy.moments, policy.master}];
  if (!all.empty()) return all;
  const RankPart* part = memo_.part(config);
  all.push_back(0);
  for (const Unit& unit : (part != nullptr ? part->inventory : memo_.inventory()).units) {
    int64_t bytes = all.back();
    for (const StateBuffer& buffer : state_buffers(unit, policy, optimizer_states(config.config.optimizer)))
      bytes += buffer.bytes();
    all.push_back(bytes);
  }
  return all;
}

int64_t PeakBytes::persistent(const ResolvedConfig& config, const RankStages& stages) {
  const std::vector<int64_t>& before = states_before(config);
  const auto found = rope_.find(config.padded_sequence);
  const int64_t rope =
      found != rope_.end() ? found->second : rope_[config.padded_sequence] = rope_table_bytes(memo_.model(), config);
  int64_t bytes = rope + config.num_microbatches * microbatch_data_bytes(config);
  for (const StageUnits& chunk : stages.chunks)
    bytes += before[static_cast<size_t>(chunk.last)] - before[static_cast<size_t>(chunk.first)];
  return stages.holds_copy(0) ? bytes + before[1] : bytes;
}

int64_t PeakBytes::operator()(const ResolvedConfig& config, int rank, const Program& program) {
  const RankView part(memo_.model(), memo_.inventory(), config, rank, memo_.part(config));
  const std::vector<UnitSteps>& all = steps(config);
  const ShardingPolicy policy = sharding_policy(config);
  const int64_t stream = stream_bytes(memo_.model(), config);
  const auto full = [&](int unit) {
    return part.inventory().units[static_cast<size_t>(unit)].padded_numel(policy.shards) * dtype_bytes(policy.compute);
  };
  const auto gathered = [&](int unit) {
    return gathered_bytes(part.inventory().units[static_cast<size_t>(unit)], policy);
  };
  Walk walk;
  walk.add(persistent(config, part.stages()));
  for (const Instruction& instruction : program.instructions) {
    const auto unit = static_cast<size_t>(std::max(instruction.unit, 0));
    switch (instruction.op) {
      case Opcode::kUnshard:
        walk.add(gathered(instruction.unit));
        break;
      case Opcode::kAllocateGrads:
        walk.add(full(instruction.unit));
        break;
      case Opcode::kReshard:
        walk.add(-gathered(instruction.unit));
        break;
      case Opcode::kAccumulateGrads:
        walk.add(-full(instruction.unit));
        break;
      case Opcode::kWaitReduce:
        if (policy.shards_grads()) walk.add(-full(instruction.unit));
        break;
      case Opcode::kForward:
        walk.take(all[unit].forward[static_cast<size_t>(instruction.keep)]);
        break;
      case Opcode::kRecompute:
        walk.take(all[unit].recompute[static_cast<size_t>(instruction.output_unused)]);
        break;
      case Opcode::kLoss:
        walk.take(all[unit].loss);
        break;
      case Opcode::kBackward:
        walk.take(all[unit].backward);
        break;
      case Opcode::kBackwardInput:
        walk.take(all[unit].backward_input);
        break;
      case Opcode::kBackwardWeight:
        walk.take(all[unit].backward_weight);
        break;
      case Opcode::kRecvActivations:
      case Opcode::kRecvGradients:
        walk.add(stream);
        break;
      case Opcode::kWaitSend:
        walk.add(-stream);
        break;
      case Opcode::kSumPartialGrads:
        for (const PartialOver over : kAllPartialOver) {
          const int64_t bytes = part.partial_elements(over) * dtype_bytes(policy.grads);
          walk.take({.net = 0, .most = bytes});
        }
        break;
      default:
        break;
    }
  }
  return walk.peak;
}

}  // namespace fivefold
