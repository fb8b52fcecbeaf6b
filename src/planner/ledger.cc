#include "planner/ledger.h"

#include <functional>
#include <set>

#include "planner/memory_replay.h"
#include "planner/rank_view.h"

namespace fivefold {
namespace {

// Buffer ids of a unit's flat buffers; tapes use smaller ones.
constexpr int kStateId = 10'000;
constexpr int kUnshardedId = 20'000;
constexpr int kTransientGradsId = 20'001;
constexpr int kDataId = 30'000;
constexpr int kNobody = -1;

class StepReplay {
 public:
  StepReplay(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config, int rank)
      : part_(model, inventory, config, rank),
        model_(part_.model()),
        inventory_(part_.inventory()),
        config_(config),
        policy_(sharding_policy(config)),
        shape_(tape_shape(config)) {
    for (int unit = 0; unit < inventory_.num_units(); ++unit)
      operations_.push_back(unit_operations(model_, inventory_, unit, part_.split(), part_.context(), part_.dropped()));
  }

  void allocate_persistent() {
    memory_.set_moment("set-up");
    const OptimizerStates states = optimizer_states(config_.config.optimizer);
    for (int unit = 0; unit < inventory_.num_units(); ++unit) {
      if (!part_.stages().holds(unit)) continue;
      int id = kStateId;
      for (const StateBuffer& buffer : state_buffers(inventory_.units[static_cast<size_t>(unit)], policy_, states))
        memory_.allocate({unit, kNobody, id++}, buffer.account, buffer.bytes());
    }
    memory_.allocate({kNobody, kNobody, kDataId}, Account::kData, rope_table_bytes(model_, config_));
    const int64_t per_microbatch = microbatch_data_bytes(config_);
    for (int i = 0; i < config_.num_microbatches; ++i)
      memory_.allocate({kNobody, i, kDataId}, Account::kData, per_microbatch);
    memory_.reset_peak();
  }

  void run(const Program& program, const std::function<void()>& after_each) {
    for (const Instruction& instruction : program.instructions) {
      memory_.set_moment(to_string(instruction, inventory_));
      execute(instruction);
      if (after_each) after_each();
    }
  }

  InstructionMemory at(const Program& program, size_t instruction) {
    FIVEFOLD_CHECK(instruction < program.instructions.size());
    for (size_t i = 0; i < instruction; ++i) execute(program.instructions[i]);
    memory_.reset_peak();
    InstructionMemory at{.before = memory_.live(), .most = {}};
    execute(program.instructions[instruction]);
    at.most = memory_.at_peak();
    return at;
  }

  const MemoryReplay& memory() const { return memory_; }
  Program program() const { return part_.program(); }

 private:
  int64_t full_bytes(int unit) const {
    return inventory_.units[static_cast<size_t>(unit)].padded_numel(policy_.shards) * dtype_bytes(policy_.compute);
  }

  void play(const Instruction& instruction, TapeStep step, const TapeOptions& options = {}) {
    for (const TapeEvent& event : tape(operations_[static_cast<size_t>(instruction.unit)], step, shape_, options)) {
      MemoryReplay::Key key{instruction.unit, instruction.microbatch, event.id};
      if (event.owner == Owner::kMicrobatch) std::get<0>(key) = kNobody;
      if (event.owner == Owner::kPreviousUnit)
        key = {instruction.unit - 1, instruction.microbatch,
               operations_[static_cast<size_t>(instruction.unit) - 1].output};
      event.allocate ? memory_.allocate(key, event.account, event.bytes) : memory_.release(key);
    }
  }

  // The tensor that crosses the border behind a unit: its output, or the gradient of it.
  MemoryReplay::Key border(const Instruction& instruction, bool gradient) const {
    if (gradient) return {kNobody, instruction.microbatch, kStreamGradientId};
    return {instruction.unit, instruction.microbatch, operations_[static_cast<size_t>(instruction.unit)].output};
  }

  void execute(const Instruction& instruction) {
    const int unit = instruction.unit;
    const MemoryReplay::Key unsharded{unit, kNobody, kUnshardedId}, transient{unit, kNobody, kTransientGradsId};
    switch (instruction.op) {
      case Opcode::kUnshard:
        return memory_.allocate(unsharded, Account::kUnshardedParams,
                                gathered_bytes(inventory_.units[static_cast<size_t>(unit)], policy_));
      case Opcode::kReshard:
        return memory_.release(unsharded);
      case Opcode::kForward:
        return play(instruction, TapeStep::kForward, {.keep = instruction.keep});
      case Opcode::kRecompute:
        return play(instruction, TapeStep::kRecompute, {.output_unused = instruction.output_unused});
      case Opcode::kLoss:
        return play(instruction, TapeStep::kLoss);
      case Opcode::kBackward:
        return play(instruction, TapeStep::kBackward);
      case Opcode::kBackwardInput:
        return play(instruction, TapeStep::kBackwardInput);
      case Opcode::kBackwardWeight:
        return play(instruction, TapeStep::kBackwardWeight);
      case Opcode::kRecvActivations:
      case Opcode::kRecvGradients:
        return memory_.allocate(border(instruction, instruction.op == Opcode::kRecvGradients), Account::kActivations,
                                shape_.stream_tokens() * model_.hidden * dtype_bytes(shape_.compute));
      case Opcode::kWaitSend:
        return memory_.release(border(instruction, instruction.gradient));
      case Opcode::kAllocateGrads:
        return memory_.allocate(transient, Account::kUnshardedGrads, full_bytes(unit));
      case Opcode::kAccumulateGrads:
        return memory_.release(transient);
      case Opcode::kWaitReduce:
        if (policy_.shards_grads()) memory_.release(transient);
        return;
      case Opcode::kSumPartialGrads:
        for (const PartialOver over : kAllPartialOver)
          memory_.touch(Account::kCommBuffers, part_.partial_elements(over) * dtype_bytes(policy_.grads));
        return;
      case Opcode::kSendActivations:
      case Opcode::kSendGradients:
      case Opcode::kCountTokens:
      case Opcode::kWaitCount:
      case Opcode::kWaitParameters:
      case Opcode::kWaitUnshard:
      case Opcode::kReduceGrads:
      case Opcode::kGradNorm:
      case Opcode::kOptimizerStep:
      case Opcode::kGatherParameters:
        return;
    }
  }

  const RankView part_;
  const ModelSpec& model_;
  const Inventory& inventory_;
  const ResolvedConfig& config_;
  ShardingPolicy policy_;
  TapeShape shape_;
  std::vector<UnitOperations> operations_;
  MemoryReplay memory_;
};

}  // namespace

int64_t rope_table_bytes(const ModelSpec& model, const ResolvedConfig& config) {
  std::set<std::tuple<double, int64_t, int, double>> distinct;
  int64_t bytes = 0;
  for (const LayerSpec& layer : model.layers) {
    const RopeSpec& rope = layer.mixer.rope;
    if (layer.mixer.kind != MixerKind::kAttention || !layer.mixer.has_rope) continue;
    if (distinct.emplace(rope.theta, rope.rotary_dim, static_cast<int>(rope.scaling), rope.factor).second)
      bytes += 2 * config.padded_sequence * (rope.rotary_dim / 2) * 4;
  }
  return bytes;
}

// Ids, targets and positions (int32) of each token, and the documents' offsets.
int64_t microbatch_data_bytes(const ResolvedConfig& config) {
  return 4 * (3 * tape_shape(config).tokens + max_documents(config) + 1);
}

Ledger predict_memory_shortened(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config) {
  constexpr int64_t kReplayed = 3;
  if (config.num_microbatches <= kReplayed) return predict_memory(model, inventory, config);
  ResolvedConfig shortened = config;
  shortened.num_microbatches = kReplayed;
  Ledger ledger = predict_memory(model, inventory, shortened);
  const int64_t data = (config.num_microbatches - kReplayed) * microbatch_data_bytes(config);
  for (AccountBytes* bytes : {&ledger.persistent, &ledger.peak, &ledger.at_peak}) (*bytes)[Account::kData] += data;
  ledger.peak_total += data;
  return ledger;
}

Ledger predict_memory(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config, int rank) {
  StepReplay replay(model, inventory, config, rank);
  replay.allocate_persistent();
  Ledger ledger;
  ledger.persistent = replay.memory().live();
  replay.run(replay.program(), nullptr);
  FIVEFOLD_CHECK(replay.memory().live() == ledger.persistent, "a step leaves buffers behind");
  ledger.peak = replay.memory().peak();
  ledger.at_peak = replay.memory().at_peak();
  ledger.peak_total = replay.memory().peak_total();
  ledger.peak_moment = replay.memory().peak_moment();
  return ledger;
}

InstructionMemory predict_memory_at(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                                    int rank, size_t instruction) {
  StepReplay replay(model, inventory, config, rank);
  replay.allocate_persistent();
  return replay.at(replay.program(), instruction);
}

std::vector<int64_t> memory_timeline(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config) {
  StepReplay replay(model, inventory, config, 0);
  replay.allocate_persistent();
  std::vector<int64_t> timeline;
  replay.run(replay.program(), [&] { timeline.push_back(replay.memory().live().total()); });
  return timeline;
}

}  // namespace fivefold
