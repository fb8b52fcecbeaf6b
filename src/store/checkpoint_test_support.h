// A small model's state for the checkpoint tests, cut over ranks as an optimizer shard would be.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/integer.h"
#include "store/checkpoint_reader.h"
#include "store/checkpoint_writer.h"

namespace fivefold {

struct WholeTensor {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
using WholeState = std::map<StateKey, WholeTensor>;

// Every byte of every tensor differs from its neighbours and from the same byte under another `salt`.
inline WholeTensor made_up_tensor(DType dtype, std::vector<int64_t> shape, int salt) {
  int64_t bytes = dtype_bytes(dtype);
  for (const int64_t dim : shape) bytes *= dim;
  WholeTensor tensor{dtype, std::move(shape), {}};
  for (int64_t i = 0; i < bytes; ++i)
    tensor.bytes.push_back(static_cast<std::byte>((i * 37 + salt * 101 + (i >> 8)) & 0xff));
  return tensor;
}

// Element counts: 13 x 7 = 91, the prime 17, a scalar, an empty tensor; dtypes of four kinds.
inline WholeState made_up_state(int salt) {
  WholeState state;
  state[{"params", "layers.0.qkv.weight"}] = made_up_tensor(DType::kBFloat16, {13, 7}, salt);
  state[{"master", "layers.0.qkv.weight"}] = made_up_tensor(DType::kFloat32, {13, 7}, salt + 1);
  state[{"moment1", "layers.0.qkv.weight"}] = made_up_tensor(DType::kUint8, {13, 7}, salt + 2);
  state[{"moment2", "layers.0.qkv.weight"}] = made_up_tensor(DType::kBFloat16, {13, 7}, salt + 3);
  state[{"params", "norm.weight"}] = made_up_tensor(DType::kFloat32, {17}, salt + 4);
  state[{"params", "scale"}] = made_up_tensor(DType::kFloat64, {}, salt + 5);
  state[{"params", "empty"}] = made_up_tensor(DType::kFloat32, {0, 3}, salt + 6);
  return state;
}

// Rank r of n holds elements [r c, (r + 1) c) with c = ceil(numel / n), cut off at the end.
inline std::pair<int64_t, int64_t> rank_range(int64_t numel, int rank, int world_size) {
  const int64_t chunk = div_ceil(numel, world_size);
  return {std::min(numel, rank * chunk), std::min(numel, (rank + 1) * chunk)};
}

inline std::vector<StatePiece> pieces_of(const WholeState& state, int rank, int world_size) {
  std::vector<StatePiece> pieces;
  for (const auto& [key, tensor] : state) {
    const int64_t size = dtype_bytes(tensor.dtype);
    const auto [begin, end] = rank_range(static_cast<int64_t>(tensor.bytes.size()) / size, rank, world_size);
    pieces.push_back({key, tensor.dtype, tensor.shape, begin, end,
                      std::span(tensor.bytes).subspan(begin * size, (end - begin) * size)});
  }
  return pieces;
}

// The columns of a block, row by row, taken element by element.
inline std::vector<std::byte> block_bytes(const WholeTensor& tensor, const ColumnBlock& block) {
  const int64_t size = dtype_bytes(tensor.dtype);
  std::vector<std::byte> bytes;
  for (int64_t row = 0; row < tensor.shape[0]; ++row)
    for (int64_t column = block.first; column < block.first + block.count; ++column)
      for (int64_t i = 0; i < size; ++i) bytes.push_back(tensor.bytes[(row * tensor.shape[1] + column) * size + i]);
  return bytes;
}

// kBlocks: matrices are cut into a block of two columns and one of the rest, and each block over all ranks.
enum class Cut { kRanges, kBlocks };

// As pieces_of, with Cut::kBlocks. `storage` keeps the bytes of the blocks.
inline std::vector<StatePiece> block_pieces_of(const WholeState& state, int rank, int world_size,
                                               std::vector<std::vector<std::byte>>& storage) {
  std::vector<StatePiece> pieces;
  for (StatePiece& whole : pieces_of(state, rank, world_size)) {
    if (whole.shape.size() != 2) {
      pieces.push_back(std::move(whole));
      continue;
    }
    const int64_t size = dtype_bytes(whole.dtype);
    for (const ColumnBlock& block : {ColumnBlock{0, 2}, ColumnBlock{2, whole.shape[1] - 2}}) {
      const auto [begin, end] = rank_range(whole.shape[0] * block.count, rank, world_size);
      const auto& bytes = storage.emplace_back(block_bytes(state.at(whole.key), block));
      pieces.push_back({whole.key, whole.dtype, whole.shape, begin, end,
                        std::span(bytes).subspan(begin * size, (end - begin) * size), block});
    }
  }
  return pieces;
}

inline RunState run_at(int64_t step) {
  return {.step = step,
          .samples_consumed = step * 32,
          .tokens_consumed = step * 4096,
          .seed = 0xfedcba9876543210,
          .generator_state = "philox:17",
          .configuration = "[model]\nname = \"tiny\"\n",
          .loss_scale = 512,
          .loss_scale_steps = 3};
}

// `ranks` holds each rank's pieces.
inline Result<std::filesystem::path> save_pieces(const CheckpointWriter& writer, int64_t step,
                                                 const std::vector<std::vector<StatePiece>>& ranks) {
  const SaveTicket ticket = writer.begin(step, static_cast<int>(ranks.size()));
  std::vector<ShardReceipt> receipts;
  for (int rank = 0; rank < ticket.world_size; ++rank) {
    // Through text, as between processes.
    const ShardReceipt receipt = writer.write_shard(ticket, rank, ranks[static_cast<size_t>(rank)]);
    FIVEFOLD_ASSIGN(ShardReceipt gathered, parse_receipt(to_text(receipt)));
    receipts.push_back(std::move(gathered));
  }
  return writer.commit(ticket, run_at(step), receipts);
}

inline Result<std::filesystem::path> save(const CheckpointWriter& writer, int64_t step, const WholeState& state,
                                          int world_size = 2, Cut cut = Cut::kRanges) {
  std::vector<std::vector<StatePiece>> ranks;
  std::vector<std::vector<std::byte>> storage;
  for (int rank = 0; rank < world_size; ++rank)
    ranks.push_back(cut == Cut::kRanges ? pieces_of(state, rank, world_size)
                                        : block_pieces_of(state, rank, world_size, storage));
  return save_pieces(writer, step, ranks);
}

// Reads every tensor as `world_size` ranks would and compares it with `state`.
inline void expect_state(CheckpointReader& reader, const WholeState& state, int world_size) {
  ASSERT_EQ(reader.tensors().size(), state.size());
  for (const auto& [key, tensor] : state) {
    const int64_t size = dtype_bytes(tensor.dtype);
    std::vector<std::byte> gathered;
    for (int rank = 0; rank < world_size; ++rank) {
      const auto [begin, end] = rank_range(static_cast<int64_t>(tensor.bytes.size()) / size, rank, world_size);
      std::vector<std::byte> part(static_cast<size_t>((end - begin) * size));
      const Status status = reader.read(key, tensor.dtype, begin, end, part);
      ASSERT_TRUE(status.ok()) << status.error().message();
      gathered.insert(gathered.end(), part.begin(), part.end());
    }
    EXPECT_EQ(gathered, tensor.bytes) << key.text() << " over " << world_size << " ranks";
  }
}

}  // namespace fivefold
