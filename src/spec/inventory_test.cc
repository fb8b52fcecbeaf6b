#include "spec/inventory.h"

#include <gtest/gtest.h>

#include <set>

#include "spec/operations.h"
#include "spec/sharding.h"

namespace fivefold {
namespace {

ModelSpec llama(int64_t layers, int64_t h, int64_t a, int64_t k, int64_t d, int64_t f, int64_t v, bool tied) {
  ModelSpec model;
  model.hidden = h;
  model.vocab = v;
  model.max_positions = 4096;
  model.tied_embeddings = tied;
  LayerSpec layer;
  layer.mixer.num_heads = a;
  layer.mixer.num_kv_heads = k;
  layer.mixer.head_dim = d;
  layer.mixer.rope.rotary_dim = d;
  layer.mlp.ffn = f;
  model.layers.assign(static_cast<size_t>(layers), layer);
  return model;
}

TEST(Inventory, CountsLlama3_8B) {
  // 8,030,261,248: model.safetensors.index.json of meta-llama/Meta-Llama-3-8B, total_size 16,060,522,496 bytes of bf16.
  EXPECT_EQ(build_inventory(llama(32, 4096, 32, 8, 128, 14336, 128256, false)).num_parameters(), 8'030'261'248);
}

TEST(Inventory, PacksTensorsAndAlignsThem) {
  // h 48, a 4, k 2, d 12, f 96: QKV is (4 + 4) * 12 = 96 rows; attention norm 48 elements.
  const Inventory inventory = build_inventory(llama(2, 48, 4, 2, 12, 96, 128, false));
  const Unit& layer = inventory.units[1];
  const ParameterEntry& qkv = layer.parameters[static_cast<size_t>(layer.find("qkv.weight"))];
  EXPECT_EQ(qkv.shape, (std::vector<int64_t>{96, 48}));
  ASSERT_EQ(qkv.parts.size(), 3u);
  EXPECT_EQ(qkv.parts[1].name, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(qkv.parts[1].row_begin, 48);
  EXPECT_EQ(qkv.parts[1].rows, 24);
  EXPECT_EQ(qkv.offset, 256);  // after the norm's 48 elements
  for (const ParameterEntry& entry : layer.parameters) EXPECT_EQ(entry.offset % kParameterAlignment, 0);
  // norm 48 -> 256; qkv 4608 -> 4864; out 2304 -> 7168; norm -> 7424; gate_up 9216 -> 16640; down 4608 -> 21248.
  EXPECT_EQ(layer.aligned_numel, 21248);
  EXPECT_EQ(layer.padded_numel(4), 21504);  // 21 * 1024
  EXPECT_EQ(layer.numel, 48 + 4608 + 2304 + 48 + 9216 + 4608);
}

TEST(Inventory, ShardsCoverEveryElementOnce) {
  const Inventory inventory = build_inventory(llama(1, 40, 4, 2, 16, 96, 131, false));
  for (const int64_t shards : {1, 2, 3, 8}) {
    for (const Unit& unit : inventory.units) {
      for (const ParameterEntry& entry : unit.parameters) {
        int64_t next = 0;
        for (int64_t shard = 0; shard < shards; ++shard) {
          const ShardRange range = shard_range(unit, entry, shards, shard);
          if (range.begin == range.end) continue;
          EXPECT_EQ(range.begin, next);
          EXPECT_LE(range.shard_offset + range.end - range.begin, unit.shard_numel(shards));
          next = range.end;
        }
        EXPECT_EQ(next, entry.numel());
      }
    }
  }
}

TEST(Inventory, FiveBillsAre16BytesPerParameter) {
  // docs/memory.md: params 2 + grads 2 + master 4 + m 4 + v 4; ZeRO-1 over 8: 4 + 12/8 = 5.5; ZeRO-2 3.75; ZeRO-3 2.
  Unit unit;
  unit.aligned_numel = 8 * 256;
  const double n = 8 * 256;
  const auto bytes_per_parameter = [&](int zero, int shards) {
    const ShardingPolicy policy{
        .zero = zero, .shards = shards, .replicas = 1, .compute = DType::kBFloat16, .grads = DType::kBFloat16};
    int64_t bytes = 0;
    for (const StateBuffer& buffer : state_buffers(unit, policy, OptimizerStates::kMoment1And2))
      bytes += buffer.bytes();
    return static_cast<double>(bytes) / n;
  };
  EXPECT_DOUBLE_EQ(bytes_per_parameter(0, 1), 16);
  EXPECT_DOUBLE_EQ(bytes_per_parameter(1, 8), 5.5);
  EXPECT_DOUBLE_EQ(bytes_per_parameter(2, 8), 3.75);
  EXPECT_DOUBLE_EQ(bytes_per_parameter(3, 8), 2);
}

TEST(Operations, Llama3_8BKeeps23hBytesPerTokenAndLayer) {
  // docs/memory.md: 4h + 2(a+2k)d + 2ad + 4f + 4a + 8 = 23h + 136 with h 4096, a 32, k 8, d 128, f 14336 = 3.5h.
  const ModelSpec model = llama(1, 4096, 32, 8, 128, 14336, 128256, false);
  const Inventory inventory = build_inventory(model);
  int64_t bytes = 0;
  for (const SavedTensor& saved : saved_tensors(unit_operations(model, inventory, 1), "layers.0", DType::kBFloat16))
    bytes += saved.bytes_per_token;
  EXPECT_EQ(bytes, 23 * 4096 + 4 * 32 + 8);
}

// docs/memory.md: mlp.gate_up 4f, attention.qkv 2(a+2k)d, attention.out 2ad + 4a bytes of the 23h + 136 are dropped.
TEST(Operations, Llama3_8BKeepsLessOfWhatSelectiveRecomputeDrops) {
  const ModelSpec model = llama(1, 4096, 32, 8, 128, 14336, 128256, false);
  const Inventory inventory = build_inventory(model);
  const auto kept = [&](const std::vector<std::string>& tensors) {
    const DroppedTensors dropped = dropped_tensors({.kind = RecomputeKind::kSelective, .every = 1, .tensors = tensors});
    int64_t bytes = 0;
    for (const SavedTensor& saved :
         saved_tensors(unit_operations(model, inventory, 1, {}, {}, dropped), "layers.0", DType::kBFloat16))
      bytes += saved.bytes_per_token;
    return bytes;
  };
  EXPECT_EQ(kept({"mlp.gate_up"}), 9 * 4096 + 4 * 32 + 8);
  EXPECT_EQ(kept({"attention.qkv"}), 20 * 4096 + 4 * 32 + 8);
  EXPECT_EQ(kept({"attention.out"}), 21 * 4096 + 8);
  // Both ends of the residual stream and the norms' statistics are left.
  EXPECT_EQ(kept({"attention.qkv", "attention.out", "mlp.gate_up"}), 4 * 4096 + 8);
}

TEST(Operations, RebuildsRunBeforeTheFirstReaderInForwardOrder) {
  const ModelSpec model = llama(1, 64, 4, 2, 16, 96, 128, false);
  const Inventory inventory = build_inventory(model);
  const auto rebuilds = [&](const std::vector<std::string>& tensors, const ContextSplit& context = {}) {
    const UnitOperations ops =
        unit_operations(model, inventory, 1, {}, context,
                        dropped_tensors({.kind = RecomputeKind::kSelective, .every = 1, .tensors = tensors}));
    std::vector<std::string> lines;
    for (const Rebuild& rebuild : ops.rebuilds) {
      std::string line = ops.operations[static_cast<size_t>(rebuild.before)].name + ":";
      for (const Rebuild::Again& again : rebuild.operations) {
        line += " " + ops.operations[static_cast<size_t>(again.operation)].name;
        if (again.part == RebuildPart::kExchange) line += " (exchange)";
        if (again.part == RebuildPart::kAfterExchange) line += " (after exchange)";
      }
      lines.push_back(line);
    }
    return lines;
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(rebuilds({"mlp.gate_up"}), Lines{"down: mlp_norm gate_up"});
  EXPECT_EQ(rebuilds({"attention.qkv"}), Lines{"attention: attention_norm qkv rope"});
  EXPECT_EQ(rebuilds({"attention.out"}), Lines{"out: attention"});
  EXPECT_EQ(rebuilds({"attention.qkv", "attention.out", "mlp.gate_up"}),
            (Lines{"down: mlp_norm gate_up", "out: attention_norm qkv rope attention"}));
  const ContextSplit ulysses{.degree = 2, .kind = CpKind::kUlysses};
  EXPECT_EQ(rebuilds({"attention.qkv"}, ulysses), Lines{"attention: attention_norm qkv rope attention (exchange)"});
  EXPECT_EQ(rebuilds({"attention.out"}, ulysses), Lines{"out: attention (after exchange)"});
  EXPECT_EQ(rebuilds({"attention.qkv", "attention.out"}, ulysses), Lines{"out: attention_norm qkv rope attention"});
}

// A tape leaves exactly what it should: replayed over forward and backward every buffer is freed once.
struct Replay {
  std::set<std::pair<int, int>> live;
  int64_t bytes = 0, peak = 0;
  std::map<std::pair<int, int>, int64_t> size;
  void play(const std::vector<TapeEvent>& events, int unit) {
    for (const TapeEvent& event : events) {
      const int owner = event.owner == Owner::kMicrobatch ? -1 : event.owner == Owner::kPreviousUnit ? unit - 1 : unit;
      const bool input = event.owner == Owner::kPreviousUnit;
      const std::pair<int, int> key{owner, input ? -5 : event.id};
      if (event.allocate) {
        EXPECT_TRUE(live.insert(key).second) << owner << " " << event.id;
        size[key] = event.bytes;
        bytes += event.bytes;
        peak = std::max(peak, bytes);
      } else {
        EXPECT_EQ(live.erase(key), 1u) << owner << " " << event.id;
        bytes -= size[key];
      }
    }
  }
};

TEST(Tape, ForwardThenBackwardFreesEverything) {
  const ModelSpec model = llama(1, 64, 4, 2, 16, 96, 128, false);
  const Inventory inventory = build_inventory(model);
  const UnitOperations ops = unit_operations(model, inventory, 1);
  const TapeShape shape{.tokens = 10, .loss_chunk = 4, .compute = DType::kFloat32};
  for (const bool recompute : {false, true}) {
    Replay replay;
    replay.live = {{0, -5}, {-1, kStreamGradientId}};
    replay.play(tape(ops, TapeStep::kForward, shape, {.keep = recompute ? Keep::kInputOnly : Keep::kAll}), 1);
    EXPECT_EQ(replay.live.count({1, ops.output}), 1u);
    replay.live.erase({1, ops.output});  // the next unit frees it
    if (recompute) {
      EXPECT_EQ(replay.live.size(), 2u);
      replay.play(tape(ops, TapeStep::kRecompute, shape, {.output_unused = true}), 1);
    }
    replay.play(tape(ops, TapeStep::kBackward, shape), 1);
    EXPECT_EQ(replay.live, (std::set<std::pair<int, int>>{{-1, kStreamGradientId}}));
  }
}

// Of a layer with h = 64, (a + 2k) d = 128, ad = 64, f = 96 and 10 fp32 tokens (40 B an element of width). Backward of
// down with gate_up made again holds 64 + 64 + 1 + 1 (input, stream, statistics), 128 + 64 + 4 (qkv, out, log-sum-exp),
// the stream's gradient 64, the norm's output 64, gate_up 192 and the activation's product 96: 742 x 40 B. Without
// dropping there is no norm's output: 678. Without qkv and out, too, the attention's backward holds less: input and
// statistics 65, stream gradient 64, norm 64, qkv 128, out 64 + 4, their gradients 128 + 64 = 581.
TEST(Tape, DroppedTensorsComeBackOneLayerAtATime) {
  const ModelSpec model = llama(1, 64, 4, 2, 16, 96, 128, false);
  const Inventory inventory = build_inventory(model);
  const TapeShape shape{.tokens = 10, .loss_chunk = 4, .compute = DType::kFloat32};
  const auto peak = [&](const std::vector<std::string>& tensors) {
    const UnitOperations ops =
        unit_operations(model, inventory, 1, {}, {},
                        dropped_tensors({.kind = RecomputeKind::kSelective, .every = 1, .tensors = tensors}));
    Replay replay;
    replay.live = {{0, -5}, {-1, kStreamGradientId}};
    replay.size = {{{0, -5}, 2560}, {{-1, kStreamGradientId}, 2560}};
    replay.bytes = 5120;
    replay.play(tape(ops, TapeStep::kForward, shape), 1);
    replay.live.erase({1, ops.output});
    replay.bytes -= 2560;
    replay.peak = 0;
    replay.play(tape(ops, TapeStep::kBackward, shape), 1);
    EXPECT_EQ(replay.live, (std::set<std::pair<int, int>>{{-1, kStreamGradientId}}));
    EXPECT_EQ(replay.bytes, 2560);
    return replay.peak;
  };
  EXPECT_EQ(peak({}), 40 * 678);
  EXPECT_EQ(peak({"mlp.gate_up"}), 40 * 742);
  // 742 without 128 of qkv and 68 of out: 546.
  EXPECT_EQ(peak({"attention.qkv", "attention.out", "mlp.gate_up"}), 40 * 581);
}

}  // namespace
}  // namespace fivefold
