// The engine allocates by the tapes: a step's ordered log of allocations and frees on every rank is that of the Program
// with each instruction's tape, event by event, workspace, data and other left out. Frees that follow each other
// without an allocation between them may come in any order: no live or peak byte depends on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <map>
#include <tuple>

#include "schedule/run_program.h"
#include "spec/rank_grid.h"
#include "spec/rank_part.h"
#include "support/tiny_model.h"

namespace fivefold::testing {
namespace {

struct Event {
  bool allocate;
  Account account;
  int64_t bytes;
  auto operator<=>(const Event&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Event& event) {
  return out << (event.allocate ? "allocate " : "free ") << event.bytes << " of " << to_string(event.account);
}

// What the step should do to the allocator, with the instruction that each event belongs to.
class ExpectedLog {
 public:
  ExpectedLog(const ModelSpec& model, const ResolvedConfig& config, int rank)
      : part_(rank_part(model, config, rank)),
        inventory_(part_.inventory),
        policy_(sharding_policy(config)),
        shape_(tape_shape(config)),
        shard_(RankGrid::create(config.degrees).value().coordinates(rank).shard) {
    for (int unit = 0; unit < inventory_.num_units(); ++unit)
      operations_.push_back(unit_operations(part_.model, inventory_, unit, part_.split, part_.context, part_.dropped));
    for (const Instruction& instruction : training_program(inventory_, config, part_.stages, rank).instructions)
      add(instruction);
    EXPECT_TRUE(live_.empty()) << "the step leaves buffers behind";
  }
  const std::vector<Event>& events() const { return events_; }
  const std::string& moment(size_t event) const { return moments_[event]; }

 private:
  // Unit (-1: the microbatch), microbatch (-1: the unit's flat buffers), buffer.
  using Key = std::tuple<int, int, int>;
  static constexpr int kUnsharded = -10, kTransientGrads = -2, kPartialGrads = -3;

  void allocate(const Key& key, Account account, int64_t bytes) {
    ASSERT_TRUE(live_.emplace(key, Event{false, account, bytes}).second) << moment_;
    note({true, account, bytes});
  }
  void release(const Key& key) {
    ASSERT_TRUE(live_.contains(key)) << moment_;
    note(live_.at(key));
    live_.erase(key);
  }
  void note(const Event& event) {
    events_.push_back(event);
    moments_.push_back(moment_);
  }
  void play(const Instruction& i, TapeStep step, const TapeOptions& options = {}) {
    for (const TapeEvent& event : tape(operations_[static_cast<size_t>(i.unit)], step, shape_, options)) {
      Key key{i.unit, i.microbatch, event.id};
      if (event.owner == Owner::kMicrobatch) key = {-1, i.microbatch, event.id};
      if (event.owner == Owner::kPreviousUnit)
        key = {i.unit - 1, i.microbatch, operations_[static_cast<size_t>(i.unit) - 1].output};
      event.allocate ? allocate(key, event.account, event.bytes) : release(key);
    }
  }
  // Trained, frozen and 4-bit weights are gathered into buffers of their own.
  void add_gathered(int unit, bool allocates) {
    int id = kUnsharded;
    for (const StateBuffer& buffer : gathered_buffers(inventory_.units[static_cast<size_t>(unit)], policy_)) {
      allocates ? allocate({unit, -1, id}, buffer.account, buffer.bytes()) : release({unit, -1, id});
      --id;
    }
  }
  Key border(const Instruction& i, bool gradient) const {
    if (gradient) return {-1, i.microbatch, kStreamGradientId};
    return {i.unit, i.microbatch, operations_[static_cast<size_t>(i.unit)].output};
  }
  void add(const Instruction& i) {
    moment_ = to_string(i, inventory_);
    const auto full_bytes = [&] {
      return inventory_.units[static_cast<size_t>(i.unit)].padded_numel(policy_.shards) * dtype_bytes(policy_.compute);
    };
    switch (i.op) {
      case Opcode::kUnshard:
        add_gathered(i.unit, true);
        break;
      case Opcode::kReshard:
        add_gathered(i.unit, false);
        break;
      case Opcode::kAllocateGrads:
        allocate({i.unit, -1, kTransientGrads}, Account::kUnshardedGrads, full_bytes());
        break;
      case Opcode::kAccumulateGrads:
        release({i.unit, -1, kTransientGrads});
        break;
      case Opcode::kWaitReduce:
        if (policy_.shards_grads()) release({i.unit, -1, kTransientGrads});
        break;
      case Opcode::kForward:
        play(i, TapeStep::kForward, {.keep = i.keep});
        break;
      case Opcode::kRecompute:
        play(i, TapeStep::kRecompute, {.output_unused = i.output_unused});
        break;
      case Opcode::kLoss:
        play(i, TapeStep::kLoss);
        break;
      case Opcode::kBackward:
        play(i, TapeStep::kBackward);
        break;
      case Opcode::kBackwardInput:
        play(i, TapeStep::kBackwardInput);
        break;
      case Opcode::kBackwardWeight:
        play(i, TapeStep::kBackwardWeight);
        break;
      case Opcode::kRecvActivations:
      case Opcode::kRecvGradients:
        allocate(border(i, i.op == Opcode::kRecvGradients), Account::kActivations,
                 shape_.stream_tokens() * part_.model.hidden * dtype_bytes(shape_.compute));
        break;
      case Opcode::kWaitSend:
        release(border(i, i.gradient));
        break;
      case Opcode::kSumPartialGrads:
        for (const PartialOver over : kAllPartialOver) sum_partial_grads(over);
        break;
      default:
        break;
    }
  }
  void sum_partial_grads(PartialOver over) {
    int64_t elements = 0;
    if (over == PartialOver::kTiedEnds && !part_.stages.shares_embedding()) return;
    for (int index = 0; index < inventory_.num_units(); ++index) {
      if (!part_.stages.holds(index)) continue;
      const Unit& unit = inventory_.units[static_cast<size_t>(index)];
      const int64_t size = unit.shard_numel(policy_.shards), begin = policy_.shards > 1 ? size * shard_ : 0;
      for (const PartialRange& range : partial_gradients(unit, part_.split, over))
        elements += std::max<int64_t>(0, std::min(range.end, begin + size) - std::max(range.begin, begin));
    }
    if (elements == 0) return;
    allocate({-1, -1, kPartialGrads}, Account::kCommBuffers, elements * dtype_bytes(policy_.grads));
    release({-1, -1, kPartialGrads});
  }

  RankPart part_;
  const Inventory& inventory_;
  ShardingPolicy policy_;
  TapeShape shape_;
  int shard_;
  std::vector<UnitOperations> operations_;
  std::map<Key, Event> live_;
  std::vector<Event> events_;
  std::vector<std::string> moments_;  // by event
  std::string moment_;
};

// Every run of frees in one order.
std::vector<Event> canonical(std::vector<Event> events) {
  for (auto begin = events.begin(); begin != events.end();) {
    const auto end = std::find_if(begin, events.end(), [](const Event& event) { return event.allocate; });
    std::sort(begin, end);
    begin = std::find_if(end, events.end(), [](const Event& event) { return !event.allocate; });
  }
  return events;
}

std::vector<Event> counted_log(const RankMemory& memory) {
  std::vector<Event> events;
  for (const auto& [allocate, bytes] : memory.log)
    if (bytes.first != Account::kWorkspace && bytes.first != Account::kOther && bytes.first != Account::kData)
      events.push_back({allocate, bytes.first, bytes.second});
  return canonical(std::move(events));
}

void compare(TinyKind kind, const Layout& layout, const std::vector<std::string>& settings = {}) {
  SCOPED_TRACE(to_string(kind) + " " + layout.name());
  const ModelSpec base = tiny_model(kind, 5);
  ProbeRequest request = tiny_request(base, ragged_batch(base, {16, 3, 0, 7}), layout, settings);
  const ModelSpec model = with_method(base, request.config.config.method);
  request.log_allocations = true;
  request.want_gradients = false;
  const ProbeResult result = probe(request);
  for (size_t rank = 0; rank < result.memory.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const ExpectedLog log(model, request.config, static_cast<int>(rank));
    const std::vector<Event> expected = canonical(log.events());
    const std::vector<Event> counted = counted_log(result.memory[rank]);
    for (size_t i = 0; i < std::min(counted.size(), expected.size()); ++i)
      ASSERT_EQ(counted[i], expected[i]) << "event " << i << ", " << log.moment(i);
    ASSERT_EQ(counted.size(), expected.size());
  }
}

TEST(AllocationLog, PlainLayers) { compare(TinyKind::kLlama, {.micro = 4}); }
TEST(AllocationLog, Gpt2WithAccumulation) { compare(TinyKind::kGpt2, {.dp = 2, .zero = 1, .accumulation = 2}); }
TEST(AllocationLog, TiedUnderLevel3WithGathersAhead) {
  compare(TinyKind::kTiedQwen3, {.dp = 4, .zero = 3}, {"parallel.prefetch=3", "batch.loss_chunk=5"});
}
TEST(AllocationLog, SegmentsOfTwoLayersUnderLevel2) {
  compare(TinyKind::kLlama, {.dp = 2, .zero = 2, .micro = 2, .recompute_every = 2});
}
TEST(AllocationLog, EveryLayerRecomputedUnderHybridSharding) {
  compare(TinyKind::kTiedQwen3, {.dp = 4, .zero = 3, .shard_size = 2, .recompute_every = 1});
}
TEST(AllocationLog, Lora) { compare(TinyKind::kLlama, {.micro = 4}, {"method.kind=lora", "method.rank=4"}); }
TEST(AllocationLog, LoraOfTwoLinearsUnderLevel3InBf16) {
  compare(TinyKind::kTiedQwen3, {.dp = 2, .zero = 3, .accumulation = 2, .recompute_every = 2, .compute = "bf16"},
          {"method.kind=lora", "method.rank=3", "method.targets=q_proj,v_proj"});
}
TEST(AllocationLog, QloraSequenceParallel) {
  compare(TinyKind::kLlama, {.dp = 2, .zero = 3, .tp = 2, .sp = true}, {"method.kind=qlora", "method.rank=4"});
}
TEST(AllocationLog, QloraWithBackwardInTwoParts) {
  compare(TinyKind::kLlama, {.dp = 1, .zero = 1, .accumulation = 4, .tp = 2, .sp = true, .pp = 2, .schedule = "zb1p"},
          {"method.kind=qlora", "method.rank=4", "method.targets=gate_proj,o_proj"});
}
TEST(AllocationLog, Gpt2WithAnAdapterOfThePackedLinear) {
  compare(TinyKind::kGpt2, {.dp = 2, .zero = 2, .accumulation = 2, .compute = "bf16"},
          {"method.kind=lora", "method.rank=4", "method.targets=c_attn"});
}
// DoRA measures rows of weights in 4 bits too, makes products again, and a recomputed segment's last linear measures
// without a product; dropout has buffers of its own; both with every order in which a linear's backward goes.
TEST(AllocationLog, DoraAndDropout) {
  const std::vector<std::string> dora = {"method.kind=lora", "method.rank=4", "method.dora=true"};
  const std::vector<std::string> both = {"method.kind=qlora", "method.rank=3", "method.dora=true",
                                         "method.dropout=0.2"};
  const std::vector<std::string> some = {"method.kind=lora", "method.rank=3", "method.dora=true", "method.dropout=0.1",
                                         "method.targets=v_proj,o_proj,down_proj"};
  const std::vector<std::string> fp8 = {"method.kind=qlora",  "method.rank=4",         "method.dora=true",
                                        "method.dropout=0.1", "precision.compute=fp8", "precision.fp8=current"};
  for (const std::vector<std::string>& method : {dora, both, some}) {
    compare(TinyKind::kLlama, {.micro = 4}, method);
    compare(TinyKind::kTiedQwen3, {.dp = 2, .zero = 3, .accumulation = 2, .recompute_every = 2, .compute = "bf16"},
            method);
    compare(TinyKind::kLlama, {.dp = 2, .zero = 3, .recompute_every = 3, .tp = 2, .sp = true}, method);
    compare(TinyKind::kTiedQwen3, {.dp = 2, .zero = 1, .tp = 2}, method);
    compare(TinyKind::kLlama, {.accumulation = 4, .tp = 2, .sp = true, .pp = 2, .schedule = "zb1p"}, method);
    compare(TinyKind::kTiedQwen3, {.accumulation = 4, .pp = 2, .schedule = "zb1p"}, method);
    compare(TinyKind::kTiedQwen3, {.micro = 4, .cp = 2, .cp_kind = "ulysses"}, method);
  }
  compare(TinyKind::kGpt2, {.dp = 2, .zero = 3, .accumulation = 2}, fp8);
  compare(TinyKind::kGpt2, {.accumulation = 2, .recompute_every = 2, .tp = 2, .sp = true}, fp8);
  compare(TinyKind::kGpt2, {.dp = 2, .zero = 2, .accumulation = 2},
          {"method.kind=lora", "method.rank=4", "method.dora=true", "method.dropout=0.5"});
}
TEST(AllocationLog, Bf16WithAccumulationInFp32) {
  compare(TinyKind::kTiedQwen3, {.dp = 2, .zero = 0, .accumulation = 2, .compute = "bf16"});
}
TEST(AllocationLog, Gpt2InBf16RecomputedInSegmentsUnderLevel3) {
  compare(TinyKind::kGpt2, {.dp = 2, .zero = 3, .accumulation = 2, .recompute_every = 3, .compute = "bf16"});
}
TEST(AllocationLog, TensorParallelWithSharedKvHeads) { compare(TinyKind::kTiedQwen3, {.dp = 2, .zero = 2, .tp = 2}); }
TEST(AllocationLog, SequenceParallelOfLlama) {
  compare(TinyKind::kLlama, {.dp = 2, .zero = 3, .recompute_every = 2, .tp = 2, .sp = true}, {"batch.loss_chunk=5"});
}
TEST(AllocationLog, SequenceParallelGpt2InBf16) {
  compare(TinyKind::kGpt2, {.zero = 0, .accumulation = 2, .compute = "bf16", .tp = 4, .sp = true});
}
// Every name and pair of names; Ulysses' exchange again, and what follows it.
TEST(AllocationLog, DroppedTensors) {
  for (const char* drop : {"mlp.gate_up", "attention.qkv", "attention.out", "attention.qkv,attention.out",
                           "attention.qkv,attention.out,mlp.gate_up"}) {
    compare(TinyKind::kLlama, {.dp = 2, .zero = 1, .micro = 2, .drop = drop});
    compare(TinyKind::kTiedQwen3, {.zero = 0, .accumulation = 2, .compute = "bf16", .tp = 2, .drop = drop});
    compare(TinyKind::kLlama, {.dp = 2, .zero = 3, .tp = 2, .sp = true, .drop = drop});
    compare(TinyKind::kTiedQwen3, {.accumulation = 4, .pp = 2, .schedule = "zb1p", .drop = drop});
    compare(TinyKind::kTiedQwen3, {.accumulation = 4, .tp = 2, .sp = true, .pp = 2, .schedule = "zb1p", .drop = drop});
    for (const char* kind : {"ring", "all_gather", "ulysses"})
      compare(TinyKind::kTiedQwen3, {.micro = 4, .cp = 2, .cp_kind = kind, .drop = drop});
  }
  for (const char* drop : {"mlp.up", "attention.qkv,mlp.up", "attention.qkv,attention.out,mlp.up"})
    compare(TinyKind::kGpt2, {.dp = 2, .zero = 2, .accumulation = 2, .drop = drop});
}

// A linear that is frozen and has no adapter does not read its input in backward; the norm that a rebuild made for it
// goes all the same.
TEST(AllocationLog, DroppedTensorsUnderAdapters) {
  const std::vector<std::string> all = {"method.kind=lora", "method.rank=4"};
  const std::vector<std::string> some = {"method.kind=qlora", "method.rank=4", "method.targets=v_proj,down_proj"};
  const std::vector<std::string> others = {"method.kind=qlora", "method.rank=4", "method.targets=o_proj,gate_proj"};
  const std::vector<std::string> dora = {"method.kind=qlora", "method.rank=4", "method.dora=true", "method.dropout=0.1",
                                         "method.targets=q_proj,o_proj,gate_proj,down_proj"};
  for (const char* drop : {"attention.qkv", "attention.out", "attention.qkv,attention.out,mlp.gate_up"})
    for (const std::vector<std::string>& method : {all, some, others, dora}) {
      compare(TinyKind::kLlama, {.dp = 2, .zero = 3, .micro = 2, .drop = drop}, method);
      compare(TinyKind::kTiedQwen3, {.tp = 2, .sp = true, .drop = drop}, method);
      compare(TinyKind::kTiedQwen3, {.accumulation = 4, .pp = 2, .schedule = "zb1p", .drop = drop}, method);
    }
}

}  // namespace
}  // namespace fivefold::testing
