#include "spec/sharding.h"

#include <gtest/gtest.h>

#include "base/integer.h"

namespace fivefold {
namespace {

ParameterEntry entry_of(const std::string& name, std::vector<int64_t> whole, std::vector<int64_t> part_rows) {
  ParameterEntry entry;
  entry.name = name;
  entry.shape = entry.whole_shape = std::move(whole);
  int64_t row = 0;
  for (const int64_t rows : part_rows) {
    entry.parts.push_back({.name = name + std::to_string(row), .row_begin = row, .rows = rows});
    row += rows;
  }
  return entry;
}

Unit unit_of(std::vector<ParameterEntry> parameters) {
  Unit unit;
  for (ParameterEntry& entry : parameters) {
    entry.offset = unit.aligned_numel;
    unit.numel += entry.numel();
    unit.aligned_numel += round_up(entry.numel(), kParameterAlignment);
  }
  unit.parameters = std::move(parameters);
  return unit;
}

// As the library whose states these are decides for the tensors on disk: q 48 x 48 = 2304 is small, gate 96 x 48 = 4608
// is not.
TEST(EightBitStates, AreThoseOfHubTensorsWith4096Elements) {
  EXPECT_FALSE(has_8bit_states(entry_of("qkv", {96, 48}, {48, 24, 24})));
  EXPECT_TRUE(has_8bit_states(entry_of("gate_up", {192, 48}, {96, 96})));
  EXPECT_FALSE(has_8bit_states(entry_of("norm", {4095}, {4095})));
  EXPECT_TRUE(has_8bit_states(entry_of("norm", {4096}, {4096})));
  // The whole parameter decides, not what a rank of a tensor group holds of it.
  ParameterEntry cut = entry_of("down", {64, 64}, {64});
  cut.shape = {64, 16};
  EXPECT_TRUE(has_8bit_states(cut));
}

int64_t bytes_of(const Unit& unit, const ShardingPolicy& policy) {
  int64_t bytes = 0;
  for (const StateBuffer& buffer : state_buffers(unit, policy, OptimizerStates::kMoment1And2)) bytes += buffer.bytes();
  return bytes;
}

// Weight 4 + gradient 4 + two moments of 1 + 4 / 256: 10.03125.
TEST(EightBitStates, Are10BytesPerParameter) {
  const Unit unit = unit_of({entry_of("w", {64, 256}, {64})});
  const ShardingPolicy policy{.moments = OptimizerStateKind::k8Bit};
  EXPECT_DOUBLE_EQ(static_cast<double>(bytes_of(unit, policy)) / (64 * 256), 10.03125);
  // Weights in bf16 without master, gradients in bf16: 2 + 2 + 2.03; with bf16 moments 8.
  ShardingPolicy least{.compute = DType::kBFloat16, .grads = DType::kBFloat16, .moments = OptimizerStateKind::k8Bit};
  least.master = MasterKind::kNone;
  EXPECT_DOUBLE_EQ(static_cast<double>(bytes_of(unit, least)) / (64 * 256), 6.03125);
  least.moments = OptimizerStateKind::kBf16;
  EXPECT_DOUBLE_EQ(static_cast<double>(bytes_of(unit, least)) / (64 * 256), 8);
}

// A norm of 100 elements beside the matrix stays in fp32: one block of 256, 1024 bytes a moment.
TEST(EightBitStates, KeepSmallTensorsInFp32) {
  const Unit unit = unit_of({entry_of("norm", {100}, {100}), entry_of("w", {64, 256}, {64})});
  const ShardingPolicy policy{.moments = OptimizerStateKind::k8Bit};
  const int64_t elements = 256 + 64 * 256;
  EXPECT_EQ(bytes_of(unit, policy), 8 * elements + 2 * (64 * 256 + 64 * 4 + 256 * 4));
}

// On every shard of every count the parameters' places lie one after the other inside the room.
TEST(EightBitStates, PlacesFillTheRoomOfEveryShard) {
  const Unit unit = unit_of({entry_of("norm", {100}, {100}), entry_of("a", {64, 100}, {64}),
                             entry_of("bias", {700}, {700}), entry_of("b", {30, 300}, {30})});
  for (const int64_t shards : {1, 2, 3, 7, 64}) {
    const MomentRoom room = moment_room(unit, shards);
    EXPECT_LE(room.in_8bit + room.in_fp32, 2 * unit.shard_numel(shards));
    for (int64_t shard = 0; shard < shards; ++shard) {
      MomentRoom used;
      const auto places = moment_places(unit, shards, shard);
      for (size_t p = 0; p < places.size(); ++p) {
        const ShardRange range = shard_range(unit, unit.parameters[p], shards, shard);
        int64_t& end = places[p].in_8bit ? used.in_8bit : used.in_fp32;
        EXPECT_EQ(places[p].offset, end);
        EXPECT_EQ(range.begin % kStateBlock, 0);
        end += round_up(range.end - range.begin, kStateBlock);
      }
      EXPECT_LE(used.in_8bit, room.in_8bit);
      EXPECT_LE(used.in_fp32, room.in_fp32);
    }
  }
}

}  // namespace
}  // namespace fivefold
