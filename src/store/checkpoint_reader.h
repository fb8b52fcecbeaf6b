// Reading of a checkpoint in any layout. Nothing unverified is handed out: files are checked against the manifest when
// the checkpoint opens, and each piece against its hash before its bytes are first used. Not thread-safe: one reader
// per rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "store/manifest.h"

namespace fivefold {

// kFiles: manifest, presence, sizes and headers; pieces are hashed as they are read. kContents: every byte is hashed at
// open, so that a checkpoint with a flipped bit is passed over for an older one. In a run of many ranks one opens the
// root with kContents and tells the others which folder to open with kFiles.
enum class Verify { kFiles, kContents };

// A checkpoint folder on disk.
struct CheckpointFolder {
  int64_t step = 0;
  std::filesystem::path path;
};
// The `step-N` folders of a root, newest first, whole or not. A folder that was set aside while its step was saved
// again follows the one that replaces it. Empty when the root does not exist.
std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& root);

class CheckpointReader {
 public:
  // `path` is a checkpoint's folder, or a root: then the one that `latest` names is opened, and when that is missing or
  // damaged the newest whole one, with the reason in fallback_reason().
  // Errors: no checkpoint there; the named folder is damaged; none of the root's is whole (the newest one's damage).
  static Result<CheckpointReader> open(const std::filesystem::path& path, Verify verify = Verify::kContents);

  const std::filesystem::path& folder() const { return folder_; }
  // Empty when the checkpoint is the one that was asked for; else a line to warn with.
  const std::string& fallback_reason() const { return fallback_reason_; }
  const RunState& run() const { return manifest_.run; }
  int world_size() const { return manifest_.world_size; }
  const std::map<StateKey, StateTensor>& tensors() const { return manifest_.tensors; }

  // Fills `out` with elements [begin, end) of the flattened global tensor, from as many pieces as hold them. Finding
  // them takes a binary search for each column block; what they hold is copied in runs of neighbouring columns.
  // Errors: no such tensor, range outside it, `dtype` differs from what was saved (nothing is converted), damaged piece
  // (file, range). REQUIRES: `out` has the size of the range (checked).
  Status read(const StateKey& key, DType dtype, int64_t begin, int64_t end, std::span<std::byte> out);

  // The same of a tensor in fp32 or, exactly converted, in bf16. Errors: as read; a tensor of another type.
  Status read_floats(const StateKey& key, int64_t begin, int64_t end, std::span<float> out);

  // Hashes every piece. Errors: the first damaged one.
  Status verify_contents();

 private:
  static Result<CheckpointReader> open_folder(const std::filesystem::path& folder, Verify verify);
  Status map_files();
  // The part of `read` that the pieces of one block hold (all of them when the tensor has no blocks).
  Status read_block(const StateKey& key, const StateTensor& tensor, std::span<const Piece> pieces, int64_t begin,
                    int64_t end, std::span<std::byte> out);
  Result<std::span<const std::byte>> verified_bytes(const StateKey& key, DType dtype, const Piece& piece);

  std::filesystem::path folder_;
  std::string fallback_reason_;
  Manifest manifest_;
  std::map<std::string, MappedFile> files_;
  std::set<const Piece*> verified_;  // pieces of manifest_ whose hash was found right
};

}  // namespace fivefold
