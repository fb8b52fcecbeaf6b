#include "planner/traffic.h"

#include <map>
#include <tuple>

#include "base/integer.h"
#include "planner/layer_traffic.h"
#include "planner/rank_view.h"
#include "spec/rank_grid.h"

namespace fivefold {
namespace {

// Bytes sent by one of n ranks, docs/communication.md: an all-reduce is a reduce-scatter and an all-gather of n chunks
// of ceil(count / n) elements.
int64_t all_reduce_bytes(int64_t n, int64_t count, int64_t element) {
  return 2 * (n - 1) * div_ceil(count, n) * element;
}
int64_t shard_bytes(int64_t n, int64_t shard_count, int64_t element) { return (n - 1) * shard_count * element; }

class TrafficSum {
 public:
  // `joined`: more bytes of the call before.
  void add(CollectiveKind kind, GroupKind group, Purpose purpose, int64_t bytes, bool joined = false) {
    auto& line = lines_[{kind, group, purpose}];
    line.first += joined ? 0 : 1;
    line.second += bytes;
  }
  std::vector<TrafficLine> lines() const {
    std::vector<TrafficLine> result;
    for (const auto& [key, value] : lines_)
      result.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), value.first, value.second});
    return result;
  }

 private:
  std::map<std::tuple<CollectiveKind, GroupKind, Purpose>, std::pair<int64_t, int64_t>> lines_;
};

}  // namespace

std::vector<TrafficLine> predict_traffic(const ModelSpec& model, const Inventory& inventory,
                                         const ResolvedConfig& config, int rank) {
  const RankView part(model, inventory, config, rank);
  const ShardingPolicy policy = sharding_policy(config);
  const int64_t shards = policy.shards, replicas = policy.replicas, world = config.degrees.world();
  const int64_t compute = dtype_bytes(policy.compute), grads = dtype_bytes(policy.grads);
  const TapeShape shape = tape_shape(config);
  const RankGrid grid = RankGrid::create(config.degrees).value();
  TrafficSum sum;
  const auto add_tensor = [&](const Instruction& instruction, TapeStep step, const TapeOptions& options) {
    const UnitOperations operations =
        unit_operations(part.model(), part.inventory(), instruction.unit, part.split(), part.context(), part.dropped());
    for (const LayerCall& call : layer_calls(operations, step, shape, options))
      sum.add(call.kind, call.group, call.purpose, call.bytes_sent(grid.group_size(call.group)));
  };
  for (const Instruction& instruction : part.program().instructions) {
    const int64_t shard =
        instruction.unit < 0 ? 0 : part.inventory().units[static_cast<size_t>(instruction.unit)].shard_numel(shards);
    switch (instruction.op) {
      case Opcode::kCountTokens:
        // The count, and whether a rank wants to stop.
        sum.add(CollectiveKind::kAllReduce, GroupKind::kWorld, Purpose::kTokenCount, all_reduce_bytes(world, 2, 8));
        break;
      case Opcode::kUnshard:
        sum.add(CollectiveKind::kAllGather, GroupKind::kShard, Purpose::kParameters,
                shard_bytes(
                    shards,
                    gathered_bytes(part.inventory().units[static_cast<size_t>(instruction.unit)], policy) / shards, 1),
                instruction.joined);
        break;
      case Opcode::kGatherParameters:
        sum.add(CollectiveKind::kAllGather, GroupKind::kShard, Purpose::kParameters,
                shard_bytes(shards, shard, compute), instruction.joined);
        break;
      case Opcode::kForward:
        add_tensor(instruction, TapeStep::kForward, {.keep = instruction.keep});
        break;
      case Opcode::kRecompute:
        add_tensor(instruction, TapeStep::kRecompute, {.output_unused = instruction.output_unused});
        break;
      case Opcode::kLoss:
        add_tensor(instruction, TapeStep::kLoss, {});
        break;
      case Opcode::kBackward:
        add_tensor(instruction, TapeStep::kBackward, {});
        break;
      case Opcode::kReduceGrads:
        // Levels 2 and 3 send the microbatch's gradient, level 1 the accumulated one.
        if (policy.shards_grads() || shards > 1)
          sum.add(CollectiveKind::kReduceScatter, GroupKind::kShard, Purpose::kGradients,
                  shard_bytes(shards, shard, policy.shards_grads() ? compute : grads), instruction.joined);
        if (instruction.last && replicas > 1)
          sum.add(CollectiveKind::kAllReduce, GroupKind::kReplicate, Purpose::kGradients,
                  all_reduce_bytes(replicas, shard, grads), instruction.joined);
        break;
      case Opcode::kSumPartialGrads:
        for (const PartialOver over : kAllPartialOver)
          if (const int64_t elements = part.partial_elements(over); elements > 0)
            sum.add(CollectiveKind::kAllReduce, group_of(over), Purpose::kGradients,
                    all_reduce_bytes(grid.group_size(group_of(over)), elements, grads));
        break;
      case Opcode::kSendActivations:
      case Opcode::kSendGradients:
        sum.add(CollectiveKind::kSend, GroupKind::kPp,
                instruction.op == Opcode::kSendActivations ? Purpose::kActivations : Purpose::kActivationGradients,
                shape.stream_tokens() * model.hidden * compute);
        break;
      case Opcode::kRecvActivations:
      case Opcode::kRecvGradients:
        sum.add(CollectiveKind::kRecv, GroupKind::kPp,
                instruction.op == Opcode::kRecvActivations ? Purpose::kActivations : Purpose::kActivationGradients, 0);
        break;
      case Opcode::kBackwardInput:
        add_tensor(instruction, TapeStep::kBackwardInput, {});
        break;
      case Opcode::kBackwardWeight:
        add_tensor(instruction, TapeStep::kBackwardWeight, {});
        break;
      case Opcode::kGradNorm:
        // The loss and the squares.
        sum.add(CollectiveKind::kAllReduce, GroupKind::kWorld, Purpose::kGradNorm, all_reduce_bytes(world, 2, 8));
        break;
      default:
        break;
    }
  }
  if (shape.fp8 == Fp8Scaling::kDelayed)
    sum.add(CollectiveKind::kAllReduce, GroupKind::kWorld, Purpose::kScales,
            all_reduce_bytes(world, fp8_slots(inventory.num_units()), 4));
  return sum.lines();
}

}  // namespace fivefold
