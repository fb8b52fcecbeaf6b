// The manifest of a checkpoint: which state tensors it holds, in which pieces they lie in which file, and what the run
// needs beside tensors to go on. Format: docs/formats/checkpoint.md. Plain values, no file access.
//
// A piece is a range [begin, end) of elements of the GLOBAL tensor, flattened row by row, or of a block of its columns,
// flattened in the same way. Ranges and blocks say nothing of ranks, so that any layout can be read from any layout:
// resharding is the intersection of ranges.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "spec/enums.h"

namespace fivefold {

// Version 2 added column blocks. A manifest without them is written as version 1, so that an older reader takes it and
// refuses only what it would misread.
inline constexpr int64_t kCheckpointFormatVersion = 2;

// One state tensor: `kind` is "params", "master", "moment1", "moment2", ...; `tensor` is the parameter's name.
struct StateKey {
  std::string kind;
  std::string tensor;
  auto operator<=>(const StateKey&) const = default;
  // "kind/tensor", as errors print it.
  std::string text() const { return kind + "/" + tensor; }
};

// Columns [first, first + count) of every row of a 2-d tensor: what one rank holds of a matrix whose columns are split.
// Element i of the block is row i / count, column first + i % count of the tensor. The default is no block.
struct ColumnBlock {
  int64_t first = 0;
  int64_t count = 0;  // 0: all columns, and the tensor may have any rank
  bool operator==(const ColumnBlock&) const = default;
};

struct Piece {
  int64_t begin = 0;  // elements of the flattened global tensor, or of its block
  int64_t end = 0;
  std::string file;
  int64_t file_begin = 0;  // byte offset in the file; the length follows from the dtype
  uint64_t hash = 0;       // XXH3-64 of the piece's bytes
  ColumnBlock block = {};

  bool has_block() const { return block != ColumnBlock{}; }
  // "[begin, end)" or "[begin, end) of columns [first, last)", as errors print it.
  std::string text() const;
};

struct StateTensor {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // global
  // By first column, then by begin. They cover the tensor exactly once: all of them have a block or none has; the
  // blocks do not overlap and hold all columns; the ranges of a block do not overlap and hold all of its elements.
  std::vector<Piece> pieces;

  // REQUIRES: shape was checked (a manifest's always is).
  int64_t numel() const;
  // Elements of the block, all of the tensor's without one. Nothing when the tensor is not 2-d or lacks such columns.
  // REQUIRES: as numel.
  std::optional<int64_t> block_numel(const ColumnBlock& block) const;
};

struct ShardFile {
  std::string name;
  int64_t bytes = 0;         // whole file
  int64_t header_bytes = 0;  // up to the first piece
  uint64_t header_hash = 0;
};

// What a run needs beside its tensors.
struct RunState {
  int64_t step = 0;
  int64_t samples_consumed = 0;  // the data cursor: data order is a function of (seed, samples consumed)
  int64_t tokens_consumed = 0;
  uint64_t seed = 0;
  std::string generator_state;  // opaque to the store; UTF-8
  std::string configuration;    // the run's configuration file; UTF-8
  // fp16 training: the loss scale, and steps without overflow since it changed. 0: none, and not in the file.
  double loss_scale = 0;
  int64_t loss_scale_steps = 0;
  bool operator==(const RunState&) const = default;
};

struct Manifest {
  RunState run;
  int world_size = 0;
  std::vector<ShardFile> files;
  std::map<StateKey, StateTensor> tensors;
};

// What one rank wrote: rank 0 gathers these. Every rank's must agree on step and nonce.
struct ShardReceipt {
  int64_t step = 0;
  std::string nonce;
  int rank = 0;
  ShardFile file;
  std::map<StateKey, StateTensor> tensors;  // with this rank's pieces only
};

// Text for a gather between processes, and back. Errors: not a receipt.
std::string to_text(const ShardReceipt& receipt);
Result<ShardReceipt> parse_receipt(std::string_view text);

// manifest.json, with a checksum over its content.
std::string to_text(const Manifest& manifest);
// Errors (where = `file_name` and the tensor): not JSON, checksum, version, missing or mistyped fields, file names that
// leave the folder, pieces or blocks that overlap, leave holes or lie outside their tensor or file.
Result<Manifest> parse_manifest(std::string_view text, const std::string& file_name);

// Joins the ranks' receipts. Errors: a rank is missing or twice, step or nonce differ, dtype or shape of a tensor
// differ between ranks, pieces or blocks overlap or leave holes. `where` begins the errors' place.
Result<Manifest> merge_receipts(const RunState& run, int world_size, const std::string& nonce,
                                const std::vector<ShardReceipt>& receipts, const std::string& where);

}  // namespace fivefold
