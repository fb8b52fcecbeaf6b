// Writing of a Hub model folder: one `model.safetensors`, or shards and an index once the tensors exceed the limit.
// Files are written under temporary names and renamed at the end, so that a failed export leaves an earlier model as it
// was up to the renames. Afterwards the model files of an earlier export that are no part of this one (the single file,
// the index, shards of another count) are removed: a reader might prefer them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/safetensors_writer.h"

namespace fivefold {

struct HubWriterOptions {
  int64_t max_shard_bytes = 5'000'000'000;  // of tensor data; a larger tensor gets a shard of its own
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  // transformers refuses files without it
};

class HubWriter {
 public:
  // Creates the folder if needed. Throws StoreError. REQUIRES: unique names, max_shard_bytes > 0 (checked).
  HubWriter(std::filesystem::path folder, std::vector<TensorDeclaration> tensors, HubWriterOptions options = {});

  // As SafetensorsWriter::write: tensors in declared order, in portions of any size.
  void write(std::string_view name, std::span<const std::byte> bytes);
  // Syncs everything and gives the files their names. REQUIRES: every declared byte was written (checked).
  void finish();

 private:
  struct Shard {
    std::string file_name;
    std::vector<TensorDeclaration> tensors;
  };
  void open_shard(size_t shard);
  void write_index() const;
  void remove_other_form() const;

  std::filesystem::path folder_;
  HubWriterOptions options_;
  std::vector<Shard> shards_;
  std::map<std::string, size_t, std::less<>> shard_of_;
  size_t current_ = 0;
  std::optional<SafetensorsWriter> writer_;
};

}  // namespace fivefold
