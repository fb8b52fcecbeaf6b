// Atomic checkpoints of many ranks. A root folder holds `step-N/` folders and the text file `latest`.
//
//   rank 0:      ticket = writer.begin(step, world_size), broadcast
//   every rank:  receipt = writer.write_shard(ticket, rank, pieces), gathered to rank 0
//   rank 0:      writer.commit(ticket, run, receipts), its outcome broadcast
//
// The caller does the communication. Until commit renames the folder, nothing that a reader looks at has changed; from
// then on the new checkpoint is whole. Protocol and guarantees: docs/formats/checkpoint.md.
//
// One save at a time and one run per root. write_shard may run on several ranks at once; the object has no mutable
// state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/file_io.h"
#include "store/manifest.h"

namespace fivefold {

// A range of a state tensor, or of a block of its columns, that one rank holds.
struct StatePiece {
  StateKey key;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // global
  int64_t begin = 0;           // elements of the flattened global tensor, or of its block
  int64_t end = 0;
  std::span<const std::byte> bytes;  // (end - begin) elements; must not change until write_shard returns
  ColumnBlock block = {};            // all pieces of a tensor have one, or none has
};

// What rank 0 tells the others.
struct SaveTicket {
  int64_t step = 0;
  int world_size = 0;
  std::string nonce;
};

struct CheckpointWriterOptions {
  int keep = 2;  // complete checkpoints that stay; at least 1
  // Called after each point of the protocol by the thread that reached it; for fault injection. Points, in order:
  //   root_created, leftovers_removed, temp_created        (begin)
  //   shard_opened, shard_written, shard_synced            (write_shard)
  //   manifest_written, manifest_synced, set_aside, renamed, root_synced, latest_temp, latest_renamed, old_hidden,
  //   old_removed                                          (commit)
  std::function<void(std::string_view point)> observer;
};

// Every function throws StoreError when the disk refuses; an earlier checkpoint is then as it was.
class CheckpointWriter {
 public:
  CheckpointWriter(std::filesystem::path root, CheckpointWriterOptions options = {});

  // Rank 0: creates the root, removes what dead runs left, creates the temporary folder. REQUIRES: step >= 0.
  SaveTicket begin(int64_t step, int world_size) const;

  // Every rank: writes and syncs `rank-NNNNN.safetensors`. Pieces may be empty.
  // REQUIRES: blocks lie in their tensors, ranges in their blocks, bytes match them, no range is given twice (checked).
  ShardReceipt write_shard(const SaveTicket& ticket, int rank, std::span<const StatePiece> pieces) const;

  // Rank 0: manifest, rename, `latest`, removal of old ones. Returns the checkpoint's folder.
  // Errors: those of merge_receipts, and run.step that is not the ticket's; the temporary folder stays until next
  // begin.
  Result<std::filesystem::path> commit(const SaveTicket& ticket, const RunState& run,
                                       const std::vector<ShardReceipt>& receipts) const;

 private:
  void reached(std::string_view point) const;
  std::filesystem::path temp_folder(const SaveTicket& ticket) const;
  void remove_leftovers() const;
  void publish(const SaveTicket& ticket, const std::filesystem::path& folder) const;
  void point_latest_at(const std::filesystem::path& folder) const;
  void remove_old(const SaveTicket& ticket) const;

  std::filesystem::path root_;
  CheckpointWriterOptions options_;
};

}  // namespace fivefold
